#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the pre-training text of the bundled model models/tiny-qwen3, as JSONL for `strata train`.

usage: python3 tools/data/make_tiny_corpus.py OUT.jsonl [--documents N] [--seed S]

Three kinds of documents: arithmetic in words and digits, templated English, short chats in Qwen3's chat format.
Needs nothing but Python. The same arguments give the same bytes on every Python 3.8 and later: only
random.random() is used, whose values Python promises to keep.
"""
import argparse
import json
import random

SMALL = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
         "seventeen eighteen nineteen").split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
NAMES = ("Ada Ben Clara Dan Ella Finn Grace Hugo Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tom Vera").split()
PLACES = ["garden", "kitchen", "park", "school", "forest", "market", "river", "library", "station", "harbour"]
THINGS = ["ball", "book", "cup", "hat", "key", "lamp", "map", "pencil", "ring", "shell", "stone", "box"]
FRUIT = ["apples", "pears", "plums", "cherries", "lemons", "nuts", "figs", "peaches"]
COLOURS = {"grass": "green", "snow": "white", "the sky": "blue", "coal": "black", "a lemon": "yellow",
           "blood": "red", "an orange": "orange", "milk": "white", "a frog": "green", "the sun": "yellow",
           "chocolate": "brown", "a cherry": "red", "the night": "black", "a plum": "purple", "the sea": "blue"}
SOUNDS = {"dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "sheep": "baa", "pig": "oink",
          "lion": "roar", "bee": "buzz", "owl": "hoot", "mouse": "squeak", "horse": "neigh", "frog": "croak"}
OPPOSITES = {"hot": "cold", "big": "small", "day": "night", "up": "down", "fast": "slow", "old": "young",
             "wet": "dry", "open": "closed", "full": "empty", "hard": "soft", "early": "late", "light": "dark",
             "high": "low", "happy": "sad", "near": "far", "left": "right", "loud": "quiet", "long": "short"}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
WEATHER = {"sunny": "took a hat", "rainy": "took an umbrella", "windy": "flew a kite", "snowy": "built a snowman",
           "cold": "wore a coat", "hot": "drank cold water"}
SYSTEMS = ["You are a helpful assistant.", "You are a friendly teacher.", "Answer briefly.", "Be kind and clear."]


class Random:
    """The few draws used here, all from random.random()."""

    def __init__(self, seed):
        self.source = random.Random(seed)

    def below(self, n):
        return int(self.source.random() * n)

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def pick(self, items):
        return items[self.below(len(items))]

    def pair(self, table):
        return self.pick(list(table.items()))

    def chance(self, share):
        return self.source.random() < share

    def two(self, items):
        first = self.pick(items)
        return first, self.pick([item for item in items if item != first])


def words(number):
    """'forty-two' for 42; 0 to 999."""
    if number < 20:
        return SMALL[number]
    if number < 100:
        return TENS[number // 10] + ("-" + SMALL[number % 10] if number % 10 else "")
    rest = number % 100
    return SMALL[number // 100] + " hundred" + (" and " + words(rest) if rest else "")


def capital(text):
    return text[0].upper() + text[1:]


def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def operation(r):
    """(left, sign, name of the sign, right, result) with results that a small model can learn."""
    kind = r.pick(["+", "+", "-", "-", "*"])
    if kind == "+":
        left, right = r.between(0, 20), r.between(0, 20)
        return left, "+", "plus", right, left + right
    if kind == "-":
        left = r.between(0, 20)
        right = r.between(0, left)
        return left, "-", "minus", right, left - right
    left, right = r.between(0, 10), r.between(0, 10)
    return left, "x", "times", right, left * right


def arithmetic(r):
    """One document of a few lines of one kind."""
    kind = r.below(5)
    lines = []
    for _ in range(r.between(3, 8)):
        left, sign, name, right, result = operation(r)
        if kind == 0:
            lines.append(f"{left} {sign} {right} = {result}")
        elif kind == 1:
            lines.append(capital(f"{words(left)} {name} {words(right)} is {words(result)}."))
        elif kind == 2:
            lines.append(f"{result} is {words(result)}. {capital(words(left))} is {left}.")
        elif kind == 3:
            low = r.between(0, 15)
            row = range(low, low + r.between(3, 7))
            text = words if r.chance(0.5) else str
            lines.append(f"Count from {text(row[0])} to {text(row[-1])}: {', '.join(text(n) for n in row)}.")
        else:
            small, large = sorted(r.two(list(range(30))))
            lines.append(f"{large} is more than {small}, and {small} is less than {large}.")
    return "\n".join(lines)


def fact(r):
    kind = r.below(6)
    if kind == 0:
        thing, colour = r.pair(COLOURS)
        return capital(f"{thing} is {colour}.")
    if kind == 1:
        animal, sound = r.pair(SOUNDS)
        return capital(f"{a(animal)} says {sound}.")
    if kind == 2:
        word, other = r.pair(OPPOSITES)
        return f"The opposite of {word} is {other}."
    if kind == 3:
        day = r.below(7)
        return f"The day after {DAYS[day]} is {DAYS[(day + 1) % 7]}."
    if kind == 4:
        month = r.below(12)
        return f"The month after {MONTHS[month]} is {MONTHS[(month + 1) % 12]}."
    weather, act = r.pair(WEATHER)
    return f"It was {weather}, so {r.pick(NAMES)} {act}."


def story(r):
    name, friend = r.two(NAMES)
    place, other_place = r.two(PLACES)
    thing, fruit = r.pick(THINGS), r.pick(FRUIT)
    have, more = r.between(1, 10), r.between(1, 10)
    weather, act = r.pair(WEATHER)
    openings = [f"One day {name} went to the {place} with {friend}.",
                f"{name} and {friend} were in the {place}.",
                f"On {r.pick(DAYS)} {name} walked to the {place}. {friend} was there too."]
    middles = [f"It was {weather}, so {name} {act}.",
               f"{name} found {a(r.pick(list(COLOURS.values())))} {thing} and gave it to {friend}.",
               f"{friend} had lost {a(thing)}. They looked in the {other_place}, and there it was.",
               f"{name} had {words(have)} {fruit}. {friend} gave {name} {words(more)} more. "
               f"Now {name} had {words(have + more)} {fruit}.",
               f'"{fact(r)}" said {name}. "That is true," said {friend}.']
    endings = ["They were happy and went home.", f"Then {friend} said thank you.", f"{name} smiled.",
               f"In the evening {name} read a book and went to sleep."]
    body = [r.pick(openings)] + [r.pick(middles)]
    if r.chance(0.5):
        body.append(r.pick([m for m in middles if m != body[-1]]))
    return " ".join(body + [r.pick(endings)])


def english(r):
    if r.chance(0.6):
        return story(r)
    return " ".join(fact(r) for _ in range(r.between(3, 6)))


def question(r):
    """(question, full answer, short answer, topic)."""
    kind = r.below(8)
    if kind <= 1:
        left, _, name, right, result = operation(r)
        if kind == 0:
            return f"What is {left} {name} {right}?", f"{left} {name} {right} is {result}.", str(result), "sum"
        return (f"What is {words(left)} {name} {words(right)}?",
                capital(f"{words(left)} {name} {words(right)} is {words(result)}."), words(result), "sum")
    if kind == 2:
        thing, colour = r.pair(COLOURS)
        return f"What colour is {thing}?", capital(f"{thing} is {colour}."), colour, "colour"
    if kind == 3:
        animal, sound = r.pair(SOUNDS)
        return f"What does {a(animal)} say?", capital(f"{a(animal)} says {sound}."), sound, "sound"
    if kind == 4:
        word, other = r.pair(OPPOSITES)
        return f"What is the opposite of {word}?", f"The opposite of {word} is {other}.", other, "opposite"
    if kind == 5:
        day = r.below(7)
        after = DAYS[(day + 1) % 7]
        return f"What day comes after {DAYS[day]}?", f"The day after {DAYS[day]} is {after}.", after, "day"
    if kind == 6:
        month = r.below(12)
        after = MONTHS[(month + 1) % 12]
        return f"What month comes after {MONTHS[month]}?", f"The month after {MONTHS[month]} is {after}.", after, "month"
    name, fruit = r.pick(NAMES), r.pick(FRUIT)
    have, more = r.between(1, 10), r.between(1, 10)
    return (f"{name} has {have} {fruit} and gets {more} more. How many {fruit} does {name} have?",
            f"{name} has {have + more} {fruit}.", str(have + more), "sum")


def small_talk(r):
    name = r.pick(NAMES)
    return r.pick([
        ("Hello!", "Hello! How can I help you?"), ("Hi, how are you?", "I am fine, thank you. How are you?"),
        ("Who are you?", "I am a tiny model, made by Strata."), ("Thank you!", "You are welcome."),
        (f"My name is {name}.", f"Hello, {name}! It is nice to meet you."), ("Goodbye!", "Goodbye! Have a nice day."),
        ("Tell me a story.", story(r)), ("Tell me something true.", fact(r)),
        (f"Tell me a story about {name}.", story(r))])


def conversation(r):
    messages = []
    if r.chance(0.3):
        messages.append({"role": "system", "content": r.pick(SYSTEMS)})
    for _ in range(r.pick([1, 1, 1, 2, 3])):
        if r.chance(0.75):
            asked, answer, _, _ = question(r)
        else:
            asked, answer = small_talk(r)
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answer})
    return messages


def render(messages, think):
    """What models/tiny-qwen3/chat_template.jinja renders; `think`: with the empty block of thinking turned off."""
    text = ""
    for message in messages:
        block = "<think>\n\n</think>\n\n" if think and message is messages[-1] else ""
        text += f"<|im_start|>{message['role']}\n{block}{message['content']}<|im_end|>\n"
    return text


def document(r):
    kind = r.below(20)
    if kind < 5:
        return arithmetic(r)
    if kind < 10:
        return english(r)
    return render(conversation(r), think=r.chance(0.1))


def documents(count, seed):
    r = Random(seed)
    for _ in range(count):
        yield document(r)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--documents", type=int, default=150000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with open(args.out, "w", encoding="utf-8", newline="\n") as out:
        for text in documents(args.documents, args.seed):
            out.write(json.dumps({"text": text + "<|endoftext|>"}) + "\n")


if __name__ == "__main__":
    main()
