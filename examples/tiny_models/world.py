"""A small world, and the text written about it.

Every document is drawn from a seeded :class:`random.Random`, so that the same seed gives the same text. The world is
regular: people, places, goods and weather follow one another in fixed rings, and a price or a trade belongs to its
owner for good. The rings have coprime lengths, so a document can go on for hundreds of tokens without coming back to
a state it had before, while a small model can still learn what follows. The wording varies: each sentence has several
forms, of which the world's state prefers one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from zlib import crc32

PREFERRED_FORM_SHARE = 0.85
"""How often a sentence takes the form its state prefers; otherwise any form is drawn."""


@dataclass(frozen=True)
class Person:
    name: str
    trade: str
    habit: str


@dataclass(frozen=True)
class Place:
    name: str
    look: str
    thing: str


@dataclass(frozen=True)
class Good:
    name: str
    many: str
    maker: str
    price: int


PEOPLE = (
    Person("Ada", "miller", "sings to the river"),
    Person("Ben", "cooper", "counts the stars"),
    Person("Cora", "weaver", "keeps three cats"),
    Person("Dan", "sailor", "draws old maps"),
    Person("Elsa", "baker", "wakes before the sun"),
    Person("Finn", "smith", "collects small bells"),
    Person("Greta", "teacher", "reads by the window"),
    Person("Hugo", "gardener", "talks to his bees"),
    Person("Ida", "carpenter", "whistles on the stairs"),
    Person("Jon", "fisher", "mends his nets at night"),
    Person("Kira", "potter", "walks barefoot in the rain"),
)
PLACES = (
    Place("mill", "old and white", "wheel"),
    Place("harbour", "loud and busy", "crane"),
    Place("market", "bright and full", "clock"),
    Place("forest", "dark and quiet", "oak"),
    Place("bridge", "narrow and steep", "lantern"),
    Place("school", "warm and small", "garden"),
    Place("tower", "tall and grey", "bell"),
)
GOODS = (
    Good("lamp", "lamps", "Finn", 9),
    Good("rope", "ropes", "Dan", 4),
    Good("basket", "baskets", "Cora", 5),
    Good("loaf", "loaves", "Elsa", 2),
    Good("barrel", "barrels", "Ben", 12),
    Good("kettle", "kettles", "Finn", 8),
    Good("candle", "candles", "Hugo", 16),
    Good("bowl", "bowls", "Kira", 6),
    Good("chair", "chairs", "Ida", 15),
    Good("map", "maps", "Dan", 7),
    Good("blanket", "blankets", "Cora", 10),
    Good("net", "nets", "Jon", 3),
    Good("book", "books", "Greta", 11),
)
WEATHER = ("sunny", "windy", "rainy", "foggy", "cold")
FRUITS = ("apple", "pear", "plum", "cherry", "berry", "quince", "lemon", "peach", "fig")
DISHES: dict[str, tuple[str, ...]] = {
    "soup": (
        "Wash the {fruit} and cut it into small pieces.",
        "Warm a spoon of butter in a deep pot.",
        "Add the {fruit} and stir until it is soft.",
        "Pour in two cups of water and a pinch of salt.",
        "Let the soup simmer for ten minutes.",
        "Serve it hot with a slice of bread.",
    ),
    "pie": (
        "Mix flour, butter and cold water to a dough.",
        "Roll the dough and lay it in a round dish.",
        "Peel the {fruit} and slice it thinly.",
        "Fill the dish with {fruit} and a cup of sugar.",
        "Cover the {fruit} with the rest of the dough.",
        "Bake the pie for forty minutes.",
        "Let it cool by the open window.",
    ),
    "jam": (
        "Weigh the {fruit} and take the same weight of sugar.",
        "Crush the {fruit} in a wide pan.",
        "Stir in the sugar and the juice of a lemon.",
        "Boil the jam and skim the foam.",
        "Test a drop on a cold plate.",
        "Fill clean jars and close them at once.",
    ),
    "tea": (
        "Dry the {fruit} on a tray near the oven.",
        "Put one spoon of dried {fruit} in a pot.",
        "Pour boiling water over it.",
        "Wait five minutes and do not stir.",
        "Drink the tea with a little honey.",
    ),
}
SKIES = {
    "sunny": ("The sun came up early.", "It was a bright and sunny day.", "The sky was blue from end to end."),
    "windy": ("A strong wind blew from the sea.", "The wind pulled at every door.", "It was windy all morning."),
    "rainy": ("Rain fell on the roofs.", "It rained until noon.", "The streets were wet with rain."),
    "foggy": ("Fog lay over the water.", "The fog hid the hills.", "It was foggy and still."),
    "cold": ("Frost covered the windows.", "It was a cold day.", "The air was cold and clear."),
}
WALKS = (
    "{name} the {trade} walked to the {place}.",
    "{name} went to the {place} after breakfast.",
    "{name} the {trade} took the path to the {place}.",
)
SIGHTS = (
    "The {place} was {look}.",
    "By the {thing} of the {place} some children were playing.",
    "Nobody was near the {thing} yet.",
)
FINDS = (
    "There {name} bought a {good} for {price} coins.",
    "There {seller} had left a {good} worth {price} coins.",
    "{name} found a {good} and gave {seller} {price} coins for it.",
)
HABITS = (
    "Everybody knows that {name} {habit}.",
    "In the evening {name} thought of {friend}, who {friend_habit}.",
    "On the way home {name} met {friend} the {friend_trade}.",
)


def next_in(ring: tuple[Person, ...] | tuple[Place, ...] | tuple[Good, ...] | tuple[str, ...], index: int) -> int:
    """The index that follows ``index`` in ``ring``."""
    return (index + 1) % len(ring)


def choose(rng: random.Random, forms: tuple[str, ...], *state: object) -> str:
    """One of ``forms``: mostly the one that ``state`` prefers."""
    if rng.random() < PREFERRED_FORM_SHARE:
        return forms[crc32(repr((forms[0], state)).encode()) % len(forms)]
    return rng.choice(forms)


class Writer:
    """Writes documents about the world; a ``Writer`` with the same seed writes the same ones."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def documents(self) -> Iterator[str]:
        """An endless stream of documents, of some tens to some thousands of characters."""
        kinds: tuple[tuple[Callable[[], str], int], ...] = (
            (self.diary, 5),
            (self.tale, 4),
            (self.cookbook, 3),
            (self.market_talk, 4),
            (self.records, 3),
            (self.chat, 4),
        )
        writers = [write for write, _ in kinds]
        weights = [weight for _, weight in kinds]
        while True:
            yield self.rng.choices(writers, weights)[0]()

    def _length(self, usual: int) -> int:
        """Sections of a document: at most ``usual`` in seven of ten, up to three times as many in the others."""
        return self.rng.randint(1, usual) if self.rng.random() < 0.7 else self.rng.randint(usual, 3 * usual)

    def diary(self) -> str:
        """Day after day in one person's life."""
        who = self.rng.randrange(len(PEOPLE))
        place, good = self.rng.randrange(len(PLACES)), self.rng.randrange(len(GOODS))
        sky, friend = self.rng.randrange(len(WEATHER)), self.rng.randrange(len(PEOPLE))
        first = self.rng.randint(1, 60)
        parts = [f"The diary of {PEOPLE[who].name} the {PEOPLE[who].trade}\n"]
        for day in range(first, first + self._length(9)):
            friend = next_in(PEOPLE, friend)
            if friend == who:
                friend = next_in(PEOPLE, friend)
            parts.append(f"\nDay {day}. {self._day(who, place, good, sky, friend)}\n")
            place, good, sky = next_in(PLACES, place), next_in(GOODS, good), next_in(WEATHER, sky)
        return "".join(parts)

    def _day(self, who: int, place: int, good: int, sky: int, friend: int) -> str:
        person, spot, item, pal = PEOPLE[who], PLACES[place], GOODS[good], PEOPLE[friend]
        words = {
            "name": person.name,
            "trade": person.trade,
            "habit": person.habit,
            "place": spot.name,
            "look": spot.look,
            "thing": spot.thing,
            "good": item.name,
            "price": item.price,
            "seller": item.maker if item.maker != person.name else "a stranger",
            "friend": pal.name,
            "friend_habit": pal.habit,
            "friend_trade": pal.trade,
        }
        weather = WEATHER[sky]
        sentences = [
            choose(self.rng, SKIES[weather], weather, spot.name),
            choose(self.rng, WALKS, weather, spot.name),
            choose(self.rng, SIGHTS, spot.name, weather),
            choose(self.rng, FINDS, item.name, spot.name),
            choose(self.rng, HABITS, pal.name, item.name),
        ]
        return " ".join(sentences).format(**words)

    def tale(self) -> str:
        """A thing wanders from hand to hand, chapter after chapter."""
        giver, place = self.rng.randrange(len(PEOPLE)), self.rng.randrange(len(PLACES))
        good = self.rng.randrange(len(GOODS))
        parts = [f"The tale of the {GOODS[good].name}\n"]
        for chapter in range(1, 1 + self._length(8)):
            taker = next_in(PEOPLE, giver)
            person, pal, spot, item = PEOPLE[giver], PEOPLE[taker], PLACES[place], GOODS[good]
            opening = choose(
                self.rng,
                (
                    "{a} the {t} lived near the {p}, which was {look}.",
                    "Near the {p} lived {a} the {t}.",
                    "At the {p} everybody knew {a} the {t}.",
                ),
                spot.name,
            )
            need = choose(
                self.rng,
                (
                    "One day {b} the {bt} came and asked for the {g}.",
                    "{b} the {bt} had long wanted a {g}.",
                    "Then {b} the {bt}, who {bh}, saw the {g}.",
                ),
                person.name,
                item.name,
            )
            deal = choose(
                self.rng,
                (
                    '"Take it," said {a}, "and give me {n} {ngs} for it."',
                    '"It is yours for {c} coins," said {a}.',
                    '"I will give you {n} {ngs}," said {b}, and {a} agreed.',
                ),
                item.name,
                spot.name,
            )
            end = choose(
                self.rng,
                (
                    "So the {g} went to {b}.",
                    "{b} carried the {g} home past the {th}.",
                    "And {a}, who {ah}, was happy too.",
                ),
                pal.name,
                spot.name,
            )
            following = GOODS[next_in(GOODS, good)]
            words = {
                "a": person.name,
                "t": person.trade,
                "ah": person.habit,
                "b": pal.name,
                "bt": pal.trade,
                "bh": pal.habit,
                "p": spot.name,
                "look": spot.look,
                "th": spot.thing,
                "g": item.name,
                "c": item.price,
                "n": 2 + item.price % 5,
                "ngs": following.many,
            }
            parts.append(f"\nChapter {chapter}\n" + " ".join((opening, need, deal, end)).format(**words) + "\n")
            giver, place, good = taker, next_in(PLACES, place), next_in(GOODS, good)
        return "".join(parts)

    def cookbook(self) -> str:
        """Recipes as numbered lists."""
        fruit, dish = self.rng.randrange(len(FRUITS)), self.rng.randrange(len(DISHES))
        names = tuple(DISHES)
        parts = ["A small cookbook\n"]
        first = self.rng.randint(1, 20)
        for number in range(first, first + self._length(6)):
            parts.append(f"\nRecipe {number}: {recipe(FRUITS[fruit], names[dish])}")
            fruit, dish = next_in(FRUITS, fruit), next_in(names, dish)
        return "".join(parts)

    def market_talk(self) -> str:
        """Two people bargain, then the next two."""
        asker, good = self.rng.randrange(len(PEOPLE)), self.rng.randrange(len(GOODS))
        place = self.rng.randrange(len(PLACES))
        parts = []
        for _ in range(self._length(8)):
            seller = next_in(PEOPLE, asker)
            a, b, item, spot = PEOPLE[asker].name, PEOPLE[seller].name, GOODS[good], PLACES[place]
            other = GOODS[next_in(GOODS, good)]
            stock = 2 + (item.price + place) % 7
            hello = choose(
                self.rng,
                (
                    f"Good morning, {b}. Do you sell {item.many}?",
                    f"Hello, {b}! I am looking for a {item.name}.",
                    f"{b}, what does a {item.name} cost today?",
                ),
                spot.name,
                item.name,
            )
            offer = choose(
                self.rng,
                (
                    f"I have {stock} {item.many} left, for {item.price} coins each.",
                    f"A {item.name} costs {item.price} coins, {a}. It is well made.",
                    f"For you, {a}, only {item.price} coins.",
                ),
                item.name,
                b,
            )
            doubt = choose(
                self.rng,
                (
                    "That is too much for me.",
                    f"Would you take a {other.name} for it?",
                    f"And what do {other.many} cost?",
                ),
                a,
                item.name,
            )
            close = choose(
                self.rng,
                (
                    f"Then give me a {other.name} and we are even.",
                    f"You can have {other.many} for {other.price} coins.",
                    f"Come back when the {spot.thing} is quiet, {a}.",
                ),
                b,
                other.name,
            )
            parts.append(f"(At the {spot.name})\n{a}: {hello}\n{b}: {offer}\n{a}: {doubt}\n{b}: {close}\n\n")
            asker, good, place = seller, next_in(GOODS, good), next_in(PLACES, place)
        return "".join(parts)

    def records(self) -> str:
        """One JSON object a line: who holds which goods where."""
        who, good = self.rng.randrange(len(PEOPLE)), self.rng.randrange(len(GOODS))
        place, number = self.rng.randrange(len(PLACES)), self.rng.randint(1, 180)
        lines = []
        for _ in range(self._length(14)):
            lines.append(record(number, who, good, place) + "\n")
            number += 1
            who, good, place = next_in(PEOPLE, who), next_in(GOODS, good), next_in(PLACES, place)
        return "".join(lines)

    def chat(self) -> str:
        """A user asks, an assistant answers; some answers are long."""
        asks = (
            self._ask_person,
            self._ask_place,
            self._ask_price,
            self._ask_recipe,
            self._ask_record,
            self._ask_story,
        )
        return "".join(chat_turn(*self.rng.choice(asks)()) for _ in range(self.rng.choice((1, 1, 2, 3))))

    def _ask_person(self) -> tuple[str, str]:
        person = self.rng.choice(PEOPLE)
        ask = self.rng.choice(("Who is {}?", "Tell me about {}.", "What do you know about {}?")).format(person.name)
        made = [good.many for good in GOODS if good.maker == person.name]
        makes = f" {person.name} makes {' and '.join(made)}." if made else ""
        return ask, f"{person.name} is a {person.trade} who {person.habit}.{makes}"

    def _ask_place(self) -> tuple[str, str]:
        place = self.rng.choice(PLACES)
        ask = self.rng.choice(("What is the {} like?", "Tell me about the {}.", "Describe the {}.")).format(place.name)
        following = PLACES[next_in(PLACES, PLACES.index(place))]
        return ask, (
            f"The {place.name} is {place.look}. People meet there by the {place.thing}. "
            f"After the {place.name} the road goes on to the {following.name}."
        )

    def _ask_price(self) -> tuple[str, str]:
        good = self.rng.choice(GOODS)
        ask = self.rng.choice(("How much is a {}?", "What does a {} cost?", "Where can I buy a {}?")).format(good.name)
        return ask, f"A {good.name} costs {good.price} coins. {good.maker} makes the best {good.many}."

    def _ask_recipe(self) -> tuple[str, str]:
        fruit, dish = self.rng.choice(FRUITS), self.rng.choice(tuple(DISHES))
        ask = self.rng.choice(("How do I make {} {}?", "Give me a recipe for {} {}.")).format(fruit, dish)
        return ask, "Here is how to make " + recipe(fruit, dish).rstrip("\n")

    def _ask_record(self) -> tuple[str, str]:
        who, good = self.rng.randrange(len(PEOPLE)), self.rng.randrange(len(GOODS))
        place, number = self.rng.randrange(len(PLACES)), self.rng.randint(1, 180)
        where = f"for {PEOPLE[who].name} at the {PLACES[place].name} with a {GOODS[good].name}"
        return f"Write record {number} {where} as JSON.", record(number, who, good, place)

    def _ask_story(self) -> tuple[str, str]:
        ask = self.rng.choice(("Tell me a story.", "Please write a long story.", "Write a diary for me."))
        return ask, (self.diary() if "diary" in ask else self.tale()).rstrip("\n")


def recipe(fruit: str, dish: str) -> str:
    """``fruit dish`` and its numbered steps, one a line."""
    steps = (f"{i}. {step.format(fruit=fruit)}\n" for i, step in enumerate(DISHES[dish], 1))
    return f"{fruit} {dish}\n" + "".join(steps)


def record(number: int, who: int, good: int, place: int) -> str:
    """One JSON object on one line."""
    person, item, other = PEOPLE[who], GOODS[good], GOODS[next_in(GOODS, good)]
    return json.dumps(
        {
            "id": number,
            "name": person.name,
            "trade": person.trade,
            "place": PLACES[place].name,
            "goods": [item.name, other.name],
            "coins": item.price + other.price,
        }
    )


def chat_turn(question: str, answer: str) -> str:
    """One turn in the words of the chat template (see :data:`tiny_models.bpe.CHAT_TEMPLATE`)."""
    return f"User: {question}\nAssistant: {answer}</s>\n"
