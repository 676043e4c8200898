"""Openings for the embedded models to carry on: texts of unequal length about the world they were trained on."""

from __future__ import annotations

PROMPTS: tuple[str, ...] = (
    "The diary of Ida the carpenter\n\nDay 3.",
    "The tale of the lamp\n\nChapter 1\nNear the school lived Cora",
    "User: Please write a long story.\nAssistant:",
    "A small cookbook\n\nRecipe 1: peach soup\n1.",
    "(At the forest)\nBen: Hello, Cora! I am looking",
    '{"id": 103, "name": "Elsa", "trade": "baker", "place": "mill", "goods": ["basket", "loaf"], "coins": 7}\n'
    '{"id": 104,',
    "The diary of Finn the smith\n\n"
    "Day 5. Rain fell on the roofs. Finn the smith took the path to the mill. By the wheel of the mill some children "
    "were playing. There Finn bought a lamp",
    "The tale of the blanket\n\n"
    "Chapter 1\nNear the forest lived Elsa the baker. Then Finn the smith, who collects small bells, saw the blanket. "
    '"It is yours for 10 coins," said Elsa. And Elsa, who wakes before the sun, was happy too.\n\nChapter',
    "User: Who is Greta?\nAssistant: Greta is a teacher who reads by the window. Greta makes books.</s>\n"
    "User: Write a diary for me.\nAssistant:",
    "A small cookbook\n\n"
    "Recipe 3: pear jam\n1. Weigh the pear and take the same weight of sugar.\n2. Crush the pear in a wide pan.\n"
    "3. Stir in the sugar and the juice of a lemon.\n4. Boil the jam and skim the",
    "(At the tower)\nBen: Good morning, Cora. Do you sell maps?\nCora: I have 8 maps left, for 7 coins each.\n"
    "Ben: That is too much for me.\nCora: You can have blankets for 10 coins.\n\n(At the",
    "The diary of Cora the weaver\n\n"
    "Day 41. It was a bright and sunny day. Cora went to the school after breakfast. By the garden of the school some "
    "children were playing. Cora found a book and gave Greta 11 coins for it. Everybody knows that Cora keeps three "
    "cats.\n\n"
    "Day 42. A strong wind blew from the sea. Cora went to the tower after",
    '{"id": 135, "name": "Ada", "trade": "miller", "place": "bridge", "goods": ["bowl", "chair"], "coins": 21}\n'
    '{"id": 136, "name": "Ben", "trade": "cooper", "place": "school", "goods": ["chair", "map"], "coins": 22}\n'
    '{"id": 137, "name": "Cora", "trade": "weaver", "place": "tower", "goods": ["map", "blanket"], "coins": 17}\n'
    '{"id": 138,',
    "(At the mill)\nHugo: Hello, Ida! I am looking for a map.\nIda: For you, Hugo, only 7 coins.\n"
    "Hugo: That is too much for me.\nIda: You can have blankets for 10 coins.\n\n"
    "(At the harbour)\nIda: Jon, what does a blanket cost today?\nJon: For you, Ida, only 10 coins.\n"
    "Ida: And what do nets cost?\nJon: Then give me a net and we are",
    "The tale of the kettle\n\n"
    "Chapter 1\nNear the school lived Finn the smith. Greta the teacher had long wanted a kettle. "
    '"It is yours for 8 coins," said Finn. So the kettle went to Greta.\n\n'
    "Chapter 2\nGreta the teacher lived near the tower, which was tall and grey. Hugo the gardener had long wanted a "
    'candle. "It is yours for 16 coins," said Greta. Hugo carried the candle home past the bell.\n\n'
    "Chapter 3\nAt the mill everybody",
    "The diary of Dan the sailor\n\n"
    "Day 26. It was a bright and sunny day. Dan went to the school after breakfast. By the garden of the school some "
    "children were playing. Dan found a book and gave Greta 11 coins for it. On the way home Dan met Finn the "
    "smith.\n\n"
    "Day 27. A strong wind blew from the sea. Dan went to the tower after breakfast. The tower was tall and grey. Dan "
    "found a lamp and gave Finn 9 coins for it. In the evening Dan thought of Greta, who reads by the window.\n\n"
    "Day 28. Rain fell on the roofs. Dan the sailor",
)
"""16 prompts of 38 to 519 characters; the models carry each of them on for hundreds of tokens."""
