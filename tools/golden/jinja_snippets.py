# SPDX-License-Identifier: Apache-2.0
"""Templates that try one thing each; tools/golden/make_text_golden.py renders them with transformers' environment."""
VARIABLES = {
    "xs": [3, 1, 2], "names": ["Bo", "al", "Cy", "bo"], "empty": [], "text": "  Hello, Wörld! ",
    "d": {"b": 1, "a": {"c": [1, 2.5, None, True]}, "items": "shadow"}, "n": 7, "f": 2.5, "t": True, "none_": None,
    "people": [{"name": "Ann", "age": 30, "tags": ["x", "y"]}, {"name": "bob", "age": 25, "tags": []},
               {"name": "Cid", "age": 30}],
    "html": "<a href='x'>&\"</a>", "uni": "naïve 的😀 ǅ ΑΣ", "lines": "a\nb\r\nc\n\nd", "big": 123456789012,
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2|7 // 2|-7 // 2|7 % 3|-7 % 3|2 ** 10|2 ** -1|2 ** 3 ** 2|-2 ** 2|1.5 + 1|7 / 7|10 // 2.5|7.5 % 2|1e3|1_000 + 1
'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'a'] ~ {'k': 'v'}|'a' * 3|[1] * 2|3 * 'ab'|[1] + [2, 3]|(1, 2) + (3,)|'%s-%d' % ('a', 3)|'%.2f' % 3.14159|'%5s|%-5s|%05d' % ('a', 'b', 42)
1 < 2 < 3|1 < 3 < 2|1 == 1.0|'a' < 'b'|[1, 2] < [1, 3]|1 != 2|none == none|true == 1|'1' == 1|not true|not not 1
1 in xs|9 in xs|9 not in xs|'ell' in text|'b' in d|'z' not in d|none in [none]|xs and 'yes' or 'no'|empty or 'fallback'|0 and x
'yes' if t else 'no'|'yes' if empty|'a' if empty else 'b' if none_ else 'c'|(1, 2)|(1,)|()|[]|{}|[1, 'a', none, true, 2.0]|{'a': [1, {'b': ()}]}
xs[0]|xs[-1]|xs[5]|xs[1:]|xs[:-1]|xs[::-1]|xs[::2]|xs[-2:]|xs[5:]|text[2:7]|text[::-1]|uni[6]|uni[-1]|uni[::-1]|xs[:]|xs[2:0:-1]|xs[-10:10]|'abc'[1]
d.b|d['b']|d.a.c[1]|d.nope|d['nope'] is defined|d.get('b')|d.get('zz')|d.get('zz', 5)|d['items']|d.keys()|d.keys()|list|d.values()|list|people[0].name|people[2].tags is undefined
d.a.items()|d.a.items()|list|(d|items)|list|d|length|people|length|text|length|uni|length|empty|length|nope|length|nope is defined|nope is undefined|nope|default('x')|none_|default('x')|none_|default('x', true)|''|default('x', boolean=true)
text.strip()|text.lstrip()|text.rstrip()|text|trim|'xxaxx'.strip('x')|'abcba'.strip('ab')|'xay'|trim('xy')|text.upper()|text.lower()|uni.upper()|uni.lower()|'hello world'.title()|"they're bill's"|title|"they're bill's".title()|'hELLO'.capitalize()|'hELLO wORLD'|capitalize
'a,b,,c'.split(',')|'a b  c '.split()|'a,b,c'.split(',', 1)|'a,b,c'.rsplit(',', 1)|' a b '.rsplit()|' a b c'.split(none, 1)|' a b c '.rsplit(none, 1)|lines.splitlines()|lines.splitlines(true)|'abc'.partition('b')|'abc'.partition('z')|'abcb'.rpartition('b')
'abc'.startswith('ab')|'abc'.startswith(('x', 'a'))|'abc'.endswith('bc')|'abc'.endswith(('c', 'd'))|'abc'.find('c')|'abc'.find('z')|'abcabc'.rfind('b')|'abcabc'.count('b')|'aaa'.count('aa')|'abc'.index('b')|'aXbXc'.replace('X', '-')|'aXbXc'.replace('X', '-', 1)|'abc'.replace('', '-')|'abc'|replace('b', 'BB')
'-'.join(['a', 'b'])|xs|join|xs|join(', ')|people|join(', ', attribute='name')|xs|join(d='-')|'abc'|join('.')|'abc'.removeprefix('a')|'abc'.removesuffix('c')|'abc'.isalpha()|'12'.isdigit()|'a1'.isalnum()|' '.isspace()|''.isalpha()|'aB'.islower()|'AB'.isupper()|'7'.zfill(3)|'-7'.zfill(4)|'ab'.center(6, '*')|'ab'.ljust(4) ~ '|'|'ab'.rjust(4)
'{} {}'.format('a', 1)|'{0}{1}{0}'.format('a', 'b')|'{x}'.format(x=3)|'{{}}'.format()|'%s %s'|format('a', 'b')|'%(a)s'|format(a=1)
"it's" ~ ['it\'s', "say \"x\"", 'both \' "', 'new\nline', 'tab\t', '\\', '\x00\x7f\u00ad\u200b é']|html|html|safe|html|upper|uni|title|uni|capitalize|'ß'|upper|'straße'.title()|'ΑΣ ΑΣΑ'.lower()
1 is number|'1' is number|true is number|1.0 is float|1 is integer|true is integer|true is boolean|1 is boolean|'a' is string|d is mapping|xs is mapping|xs is sequence|'a' is sequence|d is sequence|n is sequence|xs is iterable|n is iterable|none_ is none|nope is none|n is not none
3 is odd|4 is even|9 is divisibleby 3|9 is divisibleby(2)|1 is eq 1|1 is ne 2|1 is lt 2|2 is ge 2|3 is gt 2|'a' is in 'abc'|1 is in xs|t is sameas true|1 is sameas true|t is true|t is false|'abc' is lower|'ABC' is upper|'upper' is filter|'nope' is filter|'odd' is test|range is callable|n is callable|none is sameas none
namespace(a=1).a|namespace({'x': 2}).x|dict(a=1, b=2)|dict({'x': 1}, y=2)|dict([('a', 1)])|[('a', 1)]|list|(xs|map('string')) is defined|(xs|select) and 'generator is true'|('a' 'b')|{'a': 1}['a']|{'a': 1}.a|[[1, 2], [3]][0][1]|people[0]['tags'][-1]|d.a['c'][3]|n.x is defined|text.nope is defined
strftime_now('%d %b %Y')|strftime_now('%Y-%m-%d %H:%M:%S %A %B %j')|strftime_now('')|1 if false else 2 if false|not none_ and t|1 + (2 if t else 3)|xs|length + 1|-xs[0]|+xs[0]|- 3 + 5|2 * -3|xs|map('abs')|sum|(xs|sort)[0]|xs|list|length
"""

# '|' separates the expressions above, so filters stand here.
FILTERS = [line for line in r"""
{{ xs|join(', ') }} {{ xs|sort|join }} {{ xs|sort(reverse=true)|join(',') }} {{ names|sort|join(',') }} {{ names|sort(case_sensitive=true)|join(',') }}
{{ people|sort(attribute='age')|map(attribute='name')|join(',') }} {{ people|sort(attribute='age', reverse=true)|map(attribute='name')|join(',') }}
{{ people|selectattr('age', 'equalto', 30)|map(attribute='name')|list }} {{ people|rejectattr('age', '>', 26)|map(attribute='name')|list }}
{{ people|selectattr('tags')|map(attribute='name')|join(',') }} {{ people|rejectattr('tags')|map(attribute='name')|join(',') }} {{ people|selectattr('tags', 'defined')|list|length }}
{{ xs|select('odd')|list }} {{ xs|reject('odd')|list }} {{ [0, 1, '', 'a', none]|select|list }} {{ [0, 1, '']|reject|list }}
{{ people|map(attribute='tags', default='none')|list }} {{ people|map(attribute='tags.0', default='-')|list }} {{ names|map('upper')|list }} {{ names|map('replace', 'o', '0')|list }}
{{ d|dictsort }} {{ d|dictsort(reverse=true) }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }} {{ {'b': 2, 'A': 1}|dictsort(case_sensitive=true) }}
{{ xs|batch(2)|list }} {{ xs|batch(2, 0)|list }} {{ names|unique|list }} {{ names|unique(case_sensitive=true)|list }} {{ people|unique(attribute='age')|map(attribute='name')|list }}
[{{ lines|indent }}] [{{ lines|indent(2, true) }}] [{{ lines|indent(2, blank=true) }}] [{{ lines|indent('> ') }}] [{{ ''|indent(3, true) }}]
{{ 'a b c d e f g h'|truncate(9) }} {{ 'abcdefghijklmnop'|truncate(9, true) }} {{ 'abcdefghij'|truncate(9) }} {{ 'abcdefghijklmnop'|truncate(9, true, '-', 0) }} {{ text|wordcount }}
{{ '42'|int }} {{ '4.7'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 4.9|int }} {{ -4.9|int }} {{ true|int }} {{ '0x1f'|int(base=16) }} {{ none_|int }} {{ ' 12 '|int }} {{ '1_000'|int }} {{ ''|int }}
{{ '3.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ '1e3'|float }} {{ 42.55|round }} {{ 42.55|round(1) }} {{ 42.55|round(1, 'floor') }} {{ 42.1|round(method='ceil') }} {{ 2.5|round }} {{ -3|abs }} {{ 7|round }} {{ 0.5|round }} {{ 1.005|round(2) }}
{{ d|tojson }} {{ d|tojson(indent=2) }} {{ d|tojson(sort_keys=true) }} {{ uni|tojson }} {{ uni|tojson(ensure_ascii=true) }} {{ html|tojson }} {{ d|tojson(indent='\t') }}
{{ '\x00\x1f\x7f\u2028"\\/'|tojson }} {{ [1.0, 1e20, 1e-7, 0.1, 123456789.125]|tojson }} {{ []|tojson(indent=2) }} {{ {}|tojson }} {{ (1, 2)|tojson }}
{{ {1: 2, none: 3, 1.5: 5}|tojson }} {{ d|tojson(separators=(',', ':')) }} {{ xs|tojson(indent=0) }} {{ [[], {}, [[]]]|tojson(indent=1) }} {{ d|tojson|safe }}
{{ d|string }} {{ 1.0|string }} {{ 1e16|string }} {{ 1e15|string }} {{ 1.5e-5|string }} {{ 0.0001|string }} {{ 123456789.123456789|string }} {{ 1e100|string }} {{ 'ab'|list }} {{ d|list }}
{{ nope|default('x') }} {{ none_|default('x') }} {{ none_|default('x', true) }} {{ ''|default('x', boolean=true) }} {{ nope|d }} {{ nope|length }} {{ nope|list }} {{ nope|string }}
{{ text|trim }} {{ 'xay'|trim('xy') }} {{ text|upper }} {{ uni|title }} {{ 'hELLO wORLD'|capitalize }} {{ "they're bill's"|title }} {{ 12|upper }} {{ [1]|lower }} {{ none|trim }}
{{ xs|first }} {{ xs|last }} {{ xs|max }} {{ xs|min }} {{ xs|sum }} {{ people|sum(attribute='age') }} {{ people|max(attribute='age')|tojson }} {{ xs|reverse|list }} {{ 'abc'|reverse }} {{ empty|sum }}
{{ 'abc'|replace('b', 'BB') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'abc'|replace('', '-') }} {{ 5|replace(5, 6) }} {{ '%s-%s'|format('a', 1) }} {{ '%(a)s'|format(a=1) }} {{ 'ab'|center(6) }}|
{{ (d|items)|list }} {{ d|items|map('first')|list }} {{ d|items|map('last')|list|length }} {{ d|attr('b') }} {{ text|attr('upper')() }} {{ d|count }} {{ range(3)|list }} {{ xs|list|length }}
""".strip().split("\n")]

STATEMENTS = [
    "{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }};{% endfor %}",
    "{% for x in xs %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {% endfor %}",
    "{% for x in empty %}x{% else %}none{% endfor %}{% for x in xs if x > 1 %}{{ loop.index }}:{{ x }} {% else %}no{% endfor %}",
    "{% for x in xs if x > 9 %}{{ x }}{% else %}no{% endfor %}{% for k, v in d.a.items() %}{{ k }}={{ v }}{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}{% for c in 'héy' %}[{{ c }}]{% endfor %}{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for a in [1, 2, 3] %}{% with b = a %}{% if b == 2 %}{% break %}{% endif %}{{ b }}{% endwith %}|{% endfor %}",
    "{% for a in [1, 2, 3] %}{% with b = a %}{% if b == 2 %}{% continue %}{% endif %}{{ b }}{% endwith %}|{% endfor %}",
    "{% for a in [1, 2, 3] %}{% for b in [] %}{% else %}{% if a == 2 %}{% break %}{% endif %}{% endfor %}{{ a }}{% endfor %}",
    "{% for a in [1, 2, 3] %}{% for b in [] %}{% else %}{% if a == 2 %}{% continue %}{% endif %}{% endfor %}{{ a }}{% endfor %}",
    "{% set x = 'o' %}{% for a in [1, 2, 3] %}{% set x %}q{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% endset %}{{ x }}{% endfor %}",
    "{% for a in [1, 2, 3] %}{% filter upper %}q{% if a == 2 %}{% break %}{% endif %}{{ a }}{% endfilter %}!{% endfor %}",
    "{% for a in [1, 2] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [] recursive %}{% else %}{% break %}{% endfor %}{{ a }}{% endfor %}",
    "{% for b in [] %}{% else %}{% break %}{% endfor %}",
    "{{ 4 is divisibleby(num=2) }}{{ 4 is in(seq=[4]) }}{{ 4 is sameas(other=4) }}", "{{ 4 is divisibleby(other=2) }}", "{{ 4 is eq(other=4) }}", "{{ 4 is eq }}", "{{ 4 is divisibleby }}",
    "{{ 'abc'.find('', 5) }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('', 2, 1) }} {{ 'abc'.count('', 5) }} {{ 'abc'.count('', 3) }} {{ 'abc'.startswith('', 5) }} {{ 'abc'.endswith('', 3) }}",
    "{{ 'abc'.find('b', true) }} {{ 'abc'.rfind('', -9, 2) }} {{ 'abc'.endswith('', 4) }} {{ 'abc'.count('', 1, 9) }}", "{{ 'abc'.index('', 5) }}",
    "{% set x = 1 %}{% for i in xs %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in xs %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y is defined }}",
    "{% if t %}{% set y = 5 %}{% endif %}{{ y }}{% if empty %}a{% elif t %}b{% else %}c{% endif %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c='z') }} {{ m(a=5) }} {{ m() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{% macro q(a) %}{% if a > 0 %}{{ a }}{{ q(a - 1) }}{% endif %}{% endmacro %}{{ q(3) }}",
    "{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('b') %}in {{ n }}{% endcall %}",
    "{% macro each(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) each(xs) %}[{{ x }}]{% endcall %}",
    "{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}{% macro a(x) %}{% set x = x ~ '!' %}{{ x }}{% endmacro %}{{ a('q') ~ a('r') }}",
    "{% set b %}  block {{ n }} {% endset %}[{{ b }}]{% set c | upper | trim %} x {{ n }} y {% endset %}[{{ c }}]",
    "{% filter upper %}abc {{ text }}{% endfilter %}{% filter replace('a', 'b') | indent(2) %}a\na{% endfilter %}",
    "{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a is defined }}{% with %}{% set q = 1 %}{% endwith %}{{ q is defined }}",
    "{% raw %}{{ x }} {% if %}{# c #}{% endraw %}|{%- raw -%}  {{ y }}  {%- endraw -%}  |",
    "a {# comment #} b{#- trimmed -#}  c\n{# line #}\nd",
    "  {% if t %}\n    x\n  {% endif %}\n y",
    "\n  {%- if t -%}\n    x\n  {%- endif -%}\n y ",
    "\n  {%+ if t %}\n x {% endif +%}\n y",
    "{{ 'a' }}\n{{ 'b' }}\n\n{%- set q = 1 %}\n{{- 'c' }}   {{ 'd' -}}   \n e",
    "line one\r\nline two\rline three\n",
    "{% for x in xs -%}\n  {{ x }}\n{%- endfor %}\n.",
    "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{{ loop.depth0 }}{% endif %}{% endfor %}",
    "{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{% for m in people %}{%- set tags = m.tags if m.tags is defined else ['none'] %}{{ m.name }}:{{ tags|join('/') }};{%- endfor %}",
    "{% generation %}gen {{ n }}{% endgeneration %} after",
    "{% set a = {'k': [1, 2]} %}{{ a.k[0] }}{% set ns = namespace(l=[]) %}{% for x in xs %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}",
    "{{ [1, 2, 3,] }}{{ {'a': 1,} }}{{ (1, 2,) }}{{ f }}{{ -f }}{{ 'a' if f > 2 }}",
    "{% set m = namespace() %}{% set m.a = {'x': 1} %}{{ m.a.x }}{{ m.b is defined }}",
    "{% for x in xs %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}{{ '\\n' }}{{ \"\\t|\\u00e9|\\x41\\\\\" }}",
    "{%- for message in people[::-1] -%}{{ loop.index0 }}{{ message['name'] }}{%- endfor -%}",
    "{% set x = xs | map('string') | join(',') %}{{ x }}{% set it = xs|select %}{{ it|list }}{{ it|list }}",
    "{{ loop is defined }}{% for i in [1] %}{{ loop is defined }}{% endfor %}{{ range(2) }}{{ dict }}"[:-10],
    "{%- macro render(v, depth=0) -%}{%- if v is mapping -%}{%- for k, w in v|dictsort -%}{{ '  ' * depth }}{{ k }}:\n{{ render(w, depth + 1) }}{%- endfor -%}{%- else -%}{{ '  ' * depth }}{{ v }}\n{% endif -%}{%- endmacro -%}{{ render(d.a) }}{{ render({'z': {'y': 1}, 'a': 2}) }}",
    # Faults.
    "{{ nope.x }}", "{{ nope() }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ none + 1 }}", "{{ xs + 'a' }}", "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 5 % 0 }}", "{{ nope + 1 }}",
    "{{ raise_exception('boom') }}", "{% if t %}{{ raise_exception('a' ~ n) }}{% endif %}", "{{ text.nope() }}", "{{ xs.append(1) }}", "{{ d.update({}) }}", "{{ 'a' < 1 }}", "{{ xs|first|length }}",
    "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{{ d|sort(attribute='x')|list }}", "{{ xs|join(1)|nope }}",
    "{% if %}x{% endif %}", "{% for x in xs %}", "{{ 1 + }}", "{{ (1 }}", "{% endif %}", "{% nope %}", "{{ 'abc }}", "{% set 1 = 2 %}", "{{ xs is nope }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{{ range(200000)|length }}", "{% set x.y = 1 %}", "{{ namespace(_a=1) }}", "{{ {[1]: 2} }}", "{{ nope|tojson }}", "{{ (xs|map('upper')|map('nope')) }}"[:-19] + "}}",
    "{{ 'a'.split('') }}", "{{ 'abc'.index('z') }}", "{{ '%d' % 'a' }}", "{{ '%s' % (1, 2) }}", "{{ '%s %s' % 1 }}", "{{ xs|int }}", "{{ xs['a'] }}", "{{ none.x }}", "{{ none['x'] is defined }}", "{{ n.x.y }}",
    # What Python refuses although a lenient reading would give something.
    "{{ d[:2] }}", "{{ n[1:] }}", "{{ none_[:1] }}", "{{ nope|int }}", "{{ nope|float }}", "{{ [1, 2]|indent }}", "{{ none|truncate(9) }}", "{{ nope|indent }}",
    "{{ text.ljust() }}", "{{ text.zfill() }}", "{{ text|center(none) }}", "{{ text.replace(1, 2) }}", "{{ 'x'.startswith(['x']) }}", "{{ 'x'.endswith(['x']) }}", "{{ 'x'.startswith((1,)) }}", "{{ 'x'.endswith((1,)) }}",
    "{{ d.get('b', default=1) }}",
    "{{ 'a'.strip(chars='a') }}", "{{ 'x'.join(iterable=['a']) }}", "{{ [1] in d }}", "{{ d.get([1]) }}", "{{ [1] is filter }}", "{{ d|attr }}", "{{ d|attr(1) }}",
    "{{ ['a']|sum(start='') }}", "{{ 0.0 ** -1 }}", "{% filter length %}abc{% endfilter %}", "{% call range(3) %}{% endcall %}", "{%- raw +%}a{% endraw %}",
    "{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}", "{% for x in xs %}{{ loop.changed(x=1) }}{% endfor %}",
    # Corners of numbers, of |safe, of Python's own methods.
    "{{ nope is sameas(nope) }}{{ false|abs }}{{ -7 % 3.5 }}{{ 1e400 }}{{ 1e-400 }}{{ 'inf'|float }}{{ '-Infinity'|float }}{{ '1_0.5'|float }}{{ '1__0'|float }}",
    "{{ '0b11'|int(0, 2) }}{{ '0o17'|int(0, 8) }}{{ '-0x1f'|int(0, 16) }}{{ 'inf'|int(5) }}{{ [1, 2, 3]|truncate(3, leeway=none) }}{{ 'abcdef'|truncate(3, true, '') }}{{ 'aa'|replace('a', 'b', none) }}",
    "{{ 'xay'.startswith('a', 1) }}{{ 'xay'.endswith('a', 0, 2) }}{{ 'xay'.startswith(('x', 'b'), -1) }}{{ 'e\u0301a \u0915\u0947'|wordcount }}",
    "{{ ['<'|safe] }}{{ ('a,b'|safe).split(',') }}{{ ('a'|safe).upper() ~ '<' }}{{ ('ab'|safe).replace('a', 'c') }}{{ (' <'|safe).strip() + 'x' }}{{ ('<x'|safe)|upper }}",
    "{% set caller = 1 %}{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% macro o() %}{% macro i() %}[{{ caller() if caller else 'none' }}]{% endmacro %}{{ i() }}{{ caller() }}{% endmacro %}{% call o() %}x{% endcall %}",
    "{% macro o() %}{% macro i() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ i(1, b=2) }}{% endmacro %}{{ o(3, c=4) }}",
    "{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(a=1, a=2) }}", "{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(a=1, **{'a': 2}) }}",
    "{% set b = 7 %}{% macro m(a=b, b=2) %}{{ a }}{% endmacro %}[{{ m() }}][{{ m(b=5) }}][{{ m(1) }}]",
    "{% macro m(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b='?') }}", "{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(3) }}",
    "{% macro m(caller='d') %}{{ caller if caller is string else caller() }}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}", "{% macro m(a) %}{{ a }}{% endmacro %}{% call m(1) %}x{% endcall %}",
    "{% macro m(a) %}{{ m.name }}{{ caller is defined }}{% endmacro %}{{ m(1) }}{% call m(2) %}{% endcall %}{% filter indent(2) %}a\n{{ n }}{% endfilter %}",
    "{{ people|map(attribute='name')|length }}", "{{ (people|map(attribute='name'))[0] is defined }}", "{{ xs|batch(2)|first }}", "{{ nope in xs }}", "{{ 'a' in nope }}", "{{ 1 in 'a' }}", "{{ 'x' in 5 }}",
]


def snippets():
    out = []
    for line in EXPRESSIONS.strip().split("\n"):
        for part in line.split("|"):
            out.append("{{ " + part + " }}")
    return out + FILTERS + STATEMENTS
