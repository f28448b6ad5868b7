"""Five words to compare by phone: the lead reads them out, and the site sees the same ones.

They stand for the coordinator's authority, the federation and the site's key together, so
whoever sits between the two, or joined in the site's place, shows other words. Five words
are 40 bits. They are made slowly, by 100,000 iterations (25 ms for us), so that a search for
another key with the same words costs 2^57 hashes and not an afternoon.
"""

from __future__ import annotations

from hashlib import pbkdf2_hmac

WORDS_SHOWN = 5
_CONTEXT = b"consortium/words/v1\0"
_ITERATIONS = 100_000

# 256 words, so a byte is a word. No two have the same first three letters or come within
# two letters of each other, and none sounds like another word. Never change one: both sides
# must have the same list.
_LIST = """
acorn album almond anchor apple apron artist atlas autumn avenue award badge bamboo banjo
barrel beacon bicycle biscuit blanket blossom bonfire bottle branch bronze brush bucket
bundle butter cabin cactus camera canal captain carpet castle cherry chimney circle citrus
clinic cloud cobalt coconut coffee compass copper cotton coyote cradle cricket crystal
custard cyclone daisy dancer dentist deputy diamond doctor dolphin domino drum duchess
dynamo eagle echo eclipse editor elbow elephant ember emerald engine envelope estate evening
fabric falcon farmer feather fiddle figure finger flamingo forest fossil fountain fridge
furnace galaxy garlic gazelle giraffe glacier glove goblet golden gondola granite guitar
hamster harvest hazel helmet hexagon honey horizon iceberg igloo indigo insect island ivory
jaguar jasmine jelly jersey jigsaw jockey journal jury kayak kennel kingdom kitchen kiwi
koala lagoon lantern laptop lavender lawyer lecture lemon leopard library lilac limit lizard
lobster lotus magnet marble meadow mercury midnight mirror mitten mosaic muffin museum
napkin nectar needle nephew north nutmeg nylon oasis ocean octave office onion opera orange
orbit orchid ostrich oxygen palace paper parrot pasture peanut pebble pelican pencil piano
picnic pilot pirate plaza poem poppy prairie prism pudding pumpkin puppet puzzle pyramid
quilt rabbit radar rainbow raven reindeer ribbon robot saffron saturn scarf school shelter
shovel silver sketch smoke sofa spider sponge spruce squirrel stadium summer sunset swallow
syrup teapot temple tennis thistle thunder tomato tornado tractor trumpet tulip turtle
tuxedo twilight typist umbrella unicorn urban vacuum valley vanilla vessel village vinegar
violin visitor volcano voyage vulture waffle walnut whisker window wombat yogurt zebra
zenith zigzag zodiac
"""
WORDS = tuple(_LIST.split())


def words_of(authority: str, federation: str, site_key: bytes) -> tuple[str, ...]:
    """The words for a site's key under an authority (its fingerprint, in hexadecimal)."""
    parts = (authority.encode(), federation.encode(), site_key)
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    drawn = pbkdf2_hmac("sha256", message, _CONTEXT, _ITERATIONS, dklen=WORDS_SHOWN)
    return tuple(WORDS[byte] for byte in drawn)
