"""Units and counted nouns: words that may stand behind a number without changing what it answers."""

import re

_SYMBOLS = """
    mm cm dm km nm um in ft yd mi sq cu ml cl dl kl gal qt pt oz lb lbs mg kg ng ms ns us min mins sec secs hr hrs wk
    yr yrs mph kph kmh kmph fps rpm hz khz mhz ghz pa kpa mpa atm bar kj mj cal kcal kw mw gw kwh wh mv kv ma
    mol mmol deg rad sr usd eur gbp cny rmb inr kb mb gb tb kn ohm db ppm cc ha psi ev kev mev lm lx
"""

_SINGULAR = """
    meter metre centimeter centimetre millimeter millimetre decimeter decimetre kilometer kilometre micrometer nanometer
    inch foot yard mile acre hectare liter litre milliliter millilitre gallon quart pint cup ounce pound ton tonne gram
    kilogram milligram second minute hour day week month year decade century millisecond nanosecond degree radian
    percent percentage dollar cent euro penny nickel dime quarter rupee yuan yen won peso pence kelvin celsius
    fahrenheit joule kilojoule calorie watt kilowatt volt ampere amp ohm newton pascal hertz coulomb farad tesla mole
    bit byte unit digit integer number time way point vertex edge face side square cube triangle rectangle circle
    solution root pair tuple triple element subset function polynomial arrangement permutation combination
    outcome path route step move turn game match round set group team row column cell block tile piece part slice box
    bag page book card coin ball marble bead die ticket stamp stick block sheet apple orange banana pear peach cherry
    egg cookie cake candy pie pizza sandwich pancake muffin chocolate flower rose tree plant seed leaf car truck bus
    train bike bicycle boat plane wheel seat chair table room house floor stair door window bottle glass jar can bowl
    plate spoon animal dog cat cow horse pig sheep goat chicken duck bird fish rabbit frog spider ant bee person man
    woman child boy girl student teacher worker player member friend guest passenger customer voter people employee
    pencil pen crayon notebook shirt sock shoe hat toy doll puzzle question mark score vote hit goal
    lap revolution rotation packet pack package carton crate
"""

_LINKS = """
    per square squared cubic cubed of each total ordered distinct different possible old long tall wide high deep apart
    away
"""

_IRREGULAR = """
    feet inches pence pennies centuries vertices leaves dice geese mice wolves men women
    children cherries candies babies cities families series axes boxes matches buses glasses dishes sandwiches
    branches peaches watches volts faces
"""

_PLURAL = " ".join(f"{word}s" for word in _SINGULAR.split())

UNITS = frozenset(f"{_SYMBOLS} {_SINGULAR} {_PLURAL} {_LINKS} {_IRREGULAR}".split())

_DENIALS = "no not never wrong false or unlike neither nor except isn than as more less fewer without"
DENIALS = frozenset(_DENIALS.split())
"""Words that take an answer back, or add another one."""

_NUMERALS = """
    one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion trillion dozen score
    half halves third thirds percent percentage percents hundreds thousands millions billions dozens k bn
"""
NUMERALS = frozenset(_NUMERALS.split())
"""Words that change the number before them, or are one."""

TEXT_COMMANDS = "text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathsf|mathit|mathtt|mbox|hbox|rm"
_SPACE = r"(?:\\[,;:! ]|\\quad(?![a-zA-Z])|[\s~])*"
_FIRST = re.compile(
    rf"(?:(?<=[\d)}}\]!])|(?<=\\pi)|(?<=°)|(?<=\\circ)|(?<=\d\.))(?P<gap>{_SPACE})"
    rf"(?P<set>\\(?:{TEXT_COMMANDS})\s*\{{[\s~]*)?(?P<word>[a-zA-Z]+)(?!\w*[(_])"
)
_TEXT_ONLY = re.compile(rf"\\(?:{TEXT_COMMANDS}|cdot|times|circ|quad|left|right|displaystyle)(?![a-zA-Z])|\\[,;:! ]")
_EXPONENT = re.compile(r"(?:(?<=[a-zA-Z}])\s*\^\s*\{?-?[1-4]\}?|(?<=[a-zA-Z])[1-4])(?!\d)")
_SQUARE = re.compile(r"(?:square|cubic|sq|cu)\b", re.IGNORECASE)  # of a unit: alone it is a power
_FORBIDDEN = re.compile(r"[\d=,;<>+|\\\[\]]|\^(?!\s*\{?\s*$)")
_NO_UNIT = frozenset({"a", "p", "squared", "cubed", "cube"})  # 7:30 p.m., powers
_WORD = re.compile(r"[a-zA-Z]+")
_DEGREES = re.compile(r"\s*\^?\s*\{?\s*(?:\\circ|°)\s*\}?\s*$")


def without_unit(text: str) -> str:
    """A quantity without its unit, or what is counted: cut at the first word behind the number.

    Only where nothing in the rest could be another answer: no second number, no numeral (24 thousand), no denial.
    """
    for found in _FIRST.finditer(text):
        word, upright = found["word"].lower(), found["set"] is not None
        if (word not in UNITS and not (upright and len(word) == 1)) or word in _NO_UNIT:
            return text
        if len(word) < 3 and not upright and not found["gap"]:
            return text  # 24in could be a product
        if len(word) == 1 and not upright:
            return text
        rest = _EXPONENT.sub("", _TEXT_ONLY.sub(" ", text[found.start("set") if upright else found.start("word") :]))
        words = [each.lower() for each in _WORD.findall(rest)]
        alone = _SQUARE.match(word) is not None and not UNITS & set(words[1:2])
        if alone or _FORBIDDEN.search(rest) or not (DENIALS | NUMERALS).isdisjoint(words):
            return text
        quantity = text[: found.start()].rstrip()
        return _DEGREES.sub("", quantity) if word in ("f", "c", "k", "fahrenheit", "celsius") else quantity
    return text
