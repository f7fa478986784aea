"""The words and facts of the demo world; everything else is drawn from these tables."""

KINDS: dict[str, tuple[str, ...]] = {
    "animal": ("bear", "camel", "cow", "fox", "goat", "otter", "owl", "whale"),
    "flower": ("daisy", "iris", "lily", "orchid", "poppy", "rose", "tulip", "violet"),
    "fruit": ("apple", "cherry", "fig", "grape", "lemon", "mango", "pear", "plum"),
    "garment": ("belt", "boot", "coat", "glove", "hat", "scarf", "shirt", "sock"),
    "instrument": ("banjo", "cello", "drum", "flute", "harp", "piano", "trumpet", "violin"),
    "tool": ("axe", "chisel", "drill", "hammer", "rake", "saw", "spade", "wrench"),
    "vegetable": ("bean", "cabbage", "carrot", "leek", "onion", "potato", "radish", "turnip"),
    "vehicle": ("bike", "boat", "bus", "car", "ship", "train", "tram", "truck"),
}

OPPOSITES: tuple[tuple[str, str], ...] = (
    ("big", "small"),
    ("bright", "dim"),
    ("clean", "dirty"),
    ("deep", "shallow"),
    ("early", "late"),
    ("fast", "slow"),
    ("full", "empty"),
    ("happy", "sad"),
    ("hard", "soft"),
    ("high", "low"),
    ("hot", "cold"),
    ("long", "short"),
    ("loud", "quiet"),
    ("near", "far"),
    ("old", "new"),
    ("open", "closed"),
    ("rich", "poor"),
    ("sharp", "blunt"),
    ("smooth", "rough"),
    ("strong", "weak"),
    ("sweet", "sour"),
    ("thick", "thin"),
    ("wet", "dry"),
    ("wide", "narrow"),
)

HOMES: dict[str, tuple[str, ...]] = {
    "cave": ("bat", "mole", "newt"),
    "desert": ("camel", "lizard", "viper"),
    "farm": ("cow", "goat", "hen", "pig"),
    "forest": ("bear", "deer", "fox", "owl"),
    "mountain": ("eagle", "ibex", "yak"),
    "river": ("beaver", "otter", "trout"),
    "sea": ("crab", "shark", "squid", "whale"),
}

COLOURS: tuple[str, ...] = (
    "black",
    "blue",
    "brown",
    "green",
    "orange",
    "purple",
    "red",
    "white",
    "yellow",
)

# Invented country -> (colour of its flag, its capital).
COUNTRIES: dict[str, tuple[str, str]] = {
    "Avaria": ("green", "Tolm"),
    "Belmora": ("red", "Sand"),
    "Castria": ("white", "Pell"),
    "Dorland": ("blue", "Morv"),
    "Elvony": ("yellow", "Ruska"),
    "Galdia": ("black", "Ferin"),
    "Hestor": ("orange", "Lund"),
    "Ilmar": ("purple", "Quay"),
    "Jorvik": ("red", "Brenn"),
    "Kestan": ("brown", "Osk"),
    "Lomar": ("blue", "Vint"),
    "Nerath": ("green", "Dask"),
}

DAYS: tuple[str, ...] = (
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)

MONTHS: tuple[str, ...] = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

LETTERS: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

NAMES: tuple[str, ...] = (
    "Ada",
    "Ben",
    "Cora",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Hana",
    "Ivan",
    "Jan",
    "Kim",
    "Leo",
    "Mia",
    "Nora",
    "Otto",
    "Pia",
)

ROOMS: tuple[str, ...] = (
    "attic",
    "barn",
    "cellar",
    "garden",
    "hall",
    "kitchen",
    "office",
    "shed",
)

LARGEST_NUMBER: int = 50

# Things of no kind that is ever asked for: what an easy question's wrong choices are.
HOUSEHOLD: tuple[str, ...] = (
    "basket",
    "bench",
    "bottle",
    "bucket",
    "candle",
    "carpet",
    "chair",
    "curtain",
    "kettle",
    "ladder",
    "lamp",
    "mirror",
    "pillow",
    "plate",
    "spoon",
    "table",
)


def with_article(noun: str) -> str:
    """Puts the indefinite article before a noun of this world."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
