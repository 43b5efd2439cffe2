"""Words that may stand beside a number without changing what it answers: units, and what is commonly counted."""

from __future__ import annotations

_SYMBOLS = """
    mm cm dm km nm um in ft yd mi sq cu ml cl dl kl gal qt pt oz lb lbs mg kg ng ms ns us min mins sec secs hr hrs wk
    yr yrs am pm mph kph kmh kmph fps rpm hz khz mhz ghz pa kpa mpa atm bar kj mj cal kcal kw mw gw kwh wh mv kv ma
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
