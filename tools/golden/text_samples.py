# SPDX-License-Identifier: Apache-2.0
"""Strings for the text goldens, drawn from a seed: every script, emoji sequences, combining marks, control
characters, long runs, whitespace mixes, code, special tokens inside text, prose in several languages."""
import random
import unicodedata

WORDS = """the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were her all she there would their we him been has when who will more no if out so said what up its
about into than them can only other new some could time these two may then do first any my now such like our over man
me even most made after also did many before must through back years where much your way well down should because each
just those people how too little state good very make world still own see men work long get here between both life
being under never day same another know while last might us great old year off come since against go came right used
take three tokenizer transformer gradient matrix don't I'll we've it's THEY'RE YOU'D he'S""".split()
PROSE = [
    "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist Verpflichtung aller Gewalt.",
    "Le cœur a ses raisons que la raison ne connaît point ; l'été, ça va déjà.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "我能吞下玻璃而不伤身体。他说：“你好，世界！”", "私はガラスを食べられます。それは私を傷つけません。カタカナも。",
    "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요", "أنا قادر على أكل الزجاج و هذا لا يؤلمني.",
    "אני יכול לאכול זכוכית וזה לא מזיק לי.", "मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती.",
    "ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ", "Tôi có thể ăn thủy tinh mà không hại gì.",
    "ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝕄𝕒𝕥𝕙 𝟘𝟙𝟚 ⅷ ½ ² ①", "ქართული ენა და ანბანი", "Հայերեն լեզու",
    "ພາສາລາວ ភាសាខ្មែរ မြန်မာဘာသာ བོད་སྐད།", "தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල ગુજરાતી ਪੰਜਾਬੀ বাংলা",
]
CODE = [
    "def f(x):\n\treturn x ** 2 + 3.14e-10 if x else None  # comment\n\n\nclass A:\n    pass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0x1F; }\r\n\r\n// done\r\n",
    '{"key": [1, 2.5, true, null], "nested": {"a\\"b": "\\u00e9"}}', "SELECT * FROM t WHERE a='b';--",
    "<div class=\"x\">&nbsp;</div>\n<!-- y -->", "$ curl -X POST https://example.com/a?b=c&d=%20 | jq '.[]'",
    "x = 1234567890 + 0.000001 - 1e9 // 2024-01-31 23:59:59", "\\frac{a}{b} \\\\ \\sum_{i=1}^{n} x_i^2",
]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "1️⃣", "❤️", "🧑🏿‍🚀", "☺︎", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🫠", "🀄"]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u200b", "\x0b",
          "\x0c", "\x85", "\u2028", "\u1680", "\u180e", "\ufeff", " \t \n  ", "\r", "\u202f"]
SPECIALS = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
            "<s>", "</s>", "<unk>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
            "<think>", "</think>", "<tool_call>", "<|im_", "|im_end|>", "<s", "<0x41>", "▁", "▁▁the", "Ġthe", "<|file_sep|>",
            "<｜tool▁calls▁begin｜>", "<repo_name>", "<|image|>"]
CONTRACTIONS = ["'s", "'S", "'t", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "'ſ", "’s", "''s", "s's", "'"]


def any_character(rng):
    while True:
        top = rng.choice([0x80, 0x250, 0x600, 0x3100, 0x10000, 0x20000, 0x110000])
        c = rng.randrange(top)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def marks(rng):
    base = rng.choice(["a", "e", "o", "A", "ę", "ệ", "が", "か", "각", "ᄀ", "\u0915", "\u0b47", ""])
    pool = [0x300, 0x301, 0x302, 0x307, 0x308, 0x323, 0x327, 0x328, 0x345, 0x1161, 0x11A8, 0x3099, 0x309A, 0x94D,
            0x93C, 0x0B3E, 0x5B0, 0x5C1, 0x64B, 0x651, 0xE38, 0x1DC0, 0x20D0, 0x1E8D0, 0x1AC1, 0x11938, 0x338]
    return base + "".join(chr(rng.choice(pool)) for _ in range(rng.randrange(1, 6)))


def piece(rng):
    kind = rng.randrange(13)
    if kind < 3:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 9)))
    if kind == 3:
        text = rng.choice(PROSE)
        begin = rng.randrange(len(text))
        return text[begin:begin + rng.randrange(1, 30)]
    if kind == 4:
        text = rng.choice(CODE)
        begin = rng.randrange(len(text))
        return text[begin:begin + rng.randrange(1, 40)]
    if kind == 5:
        return rng.choice(EMOJI)
    if kind == 6:
        return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 4)))
    if kind == 7:
        return rng.choice(SPECIALS)
    if kind == 8:
        return marks(rng)
    if kind == 9:
        return "".join(any_character(rng) for _ in range(rng.randrange(1, 6)))
    if kind == 10:
        return rng.choice(CONTRACTIONS) + rng.choice(["", " ", rng.choice(WORDS)])
    if kind == 11:
        return "".join(rng.choice("0123456789०१२٣４②⅒.,") for _ in range(rng.randrange(1, 12)))
    return chr(rng.randrange(32)) * rng.randrange(1, 3) + rng.choice("!?#$%&*+-/<=>@^_`|~")


def script_blocks():
    """One string for each 128 code points: every assigned character of every script."""
    for begin in range(0, 0x20000, 128):
        text = "".join(chr(c) for c in range(begin, begin + 128)
                       if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn")
        if text and not 0x4000 <= begin < 0x9E00 and not 0xAD00 <= begin < 0xD700 and not 0xE000 <= begin < 0xF900:
            yield text


def runs(rng):
    for c in [" ", "\n", "\t", "a", "A", "0", "!", "=", "-", "é", "的", "😀", "\u0301", "▁", "\x00", "\u00a0", "ab", "\r\n", " a"]:
        yield c * rng.choice([17, 33, 64, 100, 257])
        yield c * rng.randrange(300, 1200)


def samples(count, seed):
    """`count` strings, the same for the same seed."""
    rng = random.Random(seed)
    out = ["", " ", "  ", "\n", "a", "A b", *PROSE, *CODE, *EMOJI, *SPACES, *SPECIALS, *CONTRACTIONS]
    out += list(script_blocks()) + list(runs(rng))
    while len(out) < count:
        joint = rng.choice(["", "", " "])
        out.append(joint.join(piece(rng) for _ in range(rng.randrange(1, 9))))
    return out[:count]


FAMILY_SPECIALS = ["<bos>", "<eos>", "<pad>", "<mask>", "[multimodal]", "<unused0>", "<unused98>", "<unused99>", "<unused",
                   "<start_of_turn>", "<end_of_turn>", "<start_of_turn>user\n", "<end_of_turn>\n", "<start_of_image>",
                   "<end_of_image>", "<image_soft_token>", "<table>", "</td>", "<h1>", "</code>", "<b>", "[INST]", "[/INST]",
                   "[INST", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
                   "[IMG]", "[PREFIX]", "[SUFFIX]", "[control_12]", "[REFERENCE_DOC_0]", "<SPECIAL_999>", "<SPECIAL_1000>",
                   "<|object_ref_start|>", "<|vision_pad|>", "<|fim_prefix|>", "<|repo_name|>", "<tool_response>", "<0x0A>",
                   "<0xFF>", "\u2581\u2581\u2581", "\u2581\n"]
TURNS = ["<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n{}<end_of_turn>\n",
         "<s> [INST] {} [/INST] {}</s>", "<s>[INST]{}[/INST]{}</s>", "[TOOL_CALLS] [{{\"name\": \"{}\"}}]</s>{}",
         "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"]


def family_samples(count, seed):
    """What Qwen2, Mistral and Gemma treat in ways of their own: their control tokens, turns, and runs of newlines,
    spaces and marks around the length of the longest such token."""
    rng = random.Random(seed)
    out = list(FAMILY_SPECIALS)
    out += [unit * n for unit in ["\n", " ", "\u2581", "\t"] for n in [1, 2, 3, 15, 16, 30, 31, 32, 33, 62, 63, 100]]
    while len(out) < count:
        parts = []
        for _ in range(rng.randrange(1, 7)):
            kind = rng.randrange(5)
            if kind == 0:
                parts.append(rng.choice(FAMILY_SPECIALS))
            elif kind == 1:
                parts.append(rng.choice(["\n", " ", "\u2581", "\r\n", "\t"]) * rng.randrange(1, 40))
            elif kind == 2:
                parts.append(rng.choice(TURNS).format(piece(rng), piece(rng)))
            else:
                parts.append(piece(rng))
        out.append(rng.choice(["", "", " "]).join(parts))
    return out[:count]
