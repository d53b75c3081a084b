"""Pixel faces, drawn from a small seeded grammar: a stand-in for CryptoPunks.

The 10,000 CryptoPunks are portraits of 24 x 24 pixels without an open licence. These
faces are of the same kind, but take no pixel from them: a head turned to the left is
overlaid with one sprite per layer (a mouth, some hair, perhaps a hat, ...), and each
face has its own palette. A sprite is text art in which a letter names a colour.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from d2lpar.datasets.generated.chunks import CHUNK, draw_first

_SIDE = 24
_CLEAR, _BACKGROUND = ord("."), ord("_")


def _sheet(top, left, art):
    """Sprites uint8 (24, 24) by name, in ASCII codes: the letters of ``art``.

    Sprites are side by side below their names, in bands separated by an empty line.
    Each begins at row ``top`` and column ``left`` of the picture. A dot is transparent;
    an underscore erases what is below.
    """
    sprites = {}
    for band in art.strip().split("\n\n"):
        names, *rows = (line.split() for line in band.splitlines())
        for name, *lines in zip(names, *rows):
            sprite = np.full((_SIDE, _SIDE), _CLEAR, np.uint8)
            drawn = np.array([list(line.encode()) for line in lines])
            height, width = drawn.shape
            sprite[top : top + height, left : left + width] = drawn
            sprites[name] = sprite
    return sprites


_HEAD = """
head
..ssssssss....
.slllssssss...
sllssssssssd..
slsssssssssd..
sssssssssssd..
sssssssssssd..
ssssssssssddss
ssssssssssddsd
ssssssssssddss
ssssssssssdd..
ssssssssssdd..
sssssssssddd..
.sssssssddd...
..ssssssddd...
.....dddddd...
.....ssssdd...
.....ssssdd...
...ssssssddd..
..sssssssddddd
"""

_CLOTHES = """
crew          collar        turtleneck    vest
............. ............. ....cccccC... .............
............. ...c.....C... ....cCcCcC... .............
..cc.....CC.. .ccwc...wCCC. ..cccccccCC.. ..c.......C..
ccccccccccCCC cccwwcwwwcCCC ccccccccccCCC .cccc..cccC..

suit          hoodie        pearls        scarf
............. ..c.......C.. ............. ...aaaaaaaa..
....w...w.... .cc......CCC. ....w....w... ..aaaaaaaaaa.
.cccwwawwCCC. ccCCccccCCCCC .ccc.w.w.CCC. cccaaBaaCCCC.
ccccCwawCcCCC ccccwccwccCCC ccccccwcccCCC ccccaaBccCCCC
"""

_NOSES = """
button long broad upturned
.... .ld. .... ....
.... .ld. .... ..l.
.ld. lsd. .ld. lld.
.dd. ddd. dddd .d..
"""

_MARKS = """
freckles   blush      mole       scar       plaster    tattoo     paint      age
.......... .......... .......... .......d.. .......... .......... rrr...rrr. .d.....d..
.d....d.d. .......... .......... ......d... .......ww. ........v. .......... .dd...ddd.
.......d.. .rr....rr. .......... .......d.. ......wwww .......vvv www...www. ..........
.......... ........r. ........k. .......d.. .......ww. ........v. .......... .d.....d..
"""

_BEARDS = """
stubble       full          goatee        moustache
............. ..........hh. ............. .............
............. ..........hh. ............. .............
..d.d.d.d.d.d .hhhhhh..hhhh ..hhhhhh..... ..hhhhhh.....
.d.d...d.d.d. .hh....hhhhjj ..h....h..... ..h....h.....
..d.d.d.d.d.. .hhhhhhhhhhjj ...hhhh...... .............
...d.d.d.d... ..hhHhhhhhjj. ...hhhh...... .............
............. ...hhhhhjjj.. ....hh....... .............

handlebar     long-beard    sideburns     chinstrap
............. ..........hh. ..........hhh ...........h.
............. ..........hh. ..........hhh ...........h.
h..hhhh..h... .hhhhhh..hhhh .........hhhh ...........h.
hhhh..hhhh... .hh....hhhhhj ........hhhhj ...........h.
.h......h.... .hhhhhhhhhhhj .......hhhhj. ..........hj.
............. ..hhHhhhhhjj. ............. ..hh.hhhhhj..
............. ..hHhhhhhhj.. ............. ...hhhhhhj...
............. ...hhhhhjj... ............. .............
............. ....hhhjj.... ............. .............
"""

_MOUTHS = """
calm    smile   frown   open    grin    lips    smirk   pout
....... k.....k ....... .kkkk.. kkkkkk. .m.mm.. ....k.. .......
kkkkk.. .kkkkk. .kkkk.. .kwwk.. kwwwwk. mmmmmm. kkkk... .mmmm..
....... ....... k....k. ..kk... .kkkk.. .MMMM.. ....... ..MM...
"""

_EYES = """
gazing   wide     sleepy   lashes   shadow   closed   beady    weary
........ ww...ww. dd...dd. kk...kkk vv...vv. ........ ........ iw...iw.
iw...iw. iw...iw. id...id. iw...iw. iw...iw. kk...kk. k.....k. dd...dd.
"""

_BROWS = """
level         raised        stern         thick         joined        worried
............. .jj...jj..... jj.....jj.... .jj...jjj.... ............. ..j...j......
.jj...jjj.... j...........j .jj...jj..... jjj...jjj.... jjjjjjjjj.... jj.....jj....
"""

_SHORT_HAIR = """
crop            parting         buzz            quiff
............... ............... ............... .hhhhh.........
............... ....hhhhhhh.... ............... hHHHhhhhh......
...hhhhhhhh.... ..hhHHHhhhhhh.. ............... hHhhhhhhhhhh...
..hhHHhhhhhhh.. .hHHhhhhhhhhhh. ...hhhhhhhh.... hhhhhhhhhhhhh..
.hhHhhhhhhhhhh. hhhhhjhhhhhhhh. ..hhjhjhjhhh... .hhjhhhhhhhhhh.
.hhhhhhhhhhhhj. hhhhh..jhhhhhhh .hj.j.j.hhhhh.. ..jj.jjhhhhhhh.
.h.h..h..hhhhj. hhhh.....jhhhhj .h.......jhhh.. .........jhhhj.
.........jhhhj. hh........jhhh. ..........jhh.. ..........jhhj.
..........jhj.. ...........hhj. ..........jhj.. ...........hj..
..........jj... ...........jj.. ...........j... ...........j...
"""

_TALL_HAIR = """
spikes              mohawk              afro                flat-top
.....h....h........ ......hhhhhh....... .....hhhhhhhh...... ...hhhhhhhhhhhh....
..h..hh..hh..h..... .....hHHhhhhhh..... ...hhHhhHhhhhhh.... ...hHHHHHhhhhhh....
..hh.hh.hhh.hh..h.. .....hHhhhhhhhh.... ..hhHhhhhhHhhhhh... ...hHhhhhhhhhhh....
...hhHhhhHhhhhhhh.. .....hhhhhhhhhhh... .hHhhhHhhhhhhHhhh.. ...hhhhhhhhhhhhh...
...hHhhhHhhhhhhh... .....jhhhhhhhhhhh.. .hhhhhhhhHhhhhhhhh. ...hhhhhhhhhhhhh...
..hhhhhhhhhhhhhhh.. ......jjjhhhhhhhh.. hhhHhhHhhhhhhhHhhj. ...hhhhhhhhhhhhj...
...hhh.hhh.hhhhhhh. ..........jhhhhhh.. hHhhhhhhhhHhhhhhhj. ...jjjjjjhhhhhhj...
...h....h...hhhhj.. ............jhhhh.. hhhj.jj.jj.jhhHhhj. ...........jhhhj...
............jhhhjj. ..............hhh.. hhj.........jhhhhj. ............jhjj...
.............jj.... ..............jh... hhj..........hhhhj. .............jj....
................... ................... .hh..........jhhhj. ...................
................... ................... .hj..........jhhj.. ...................
................... ................... ..j...........jj... ...................

bun                 curls               tonsure             ponytail
.........hhhh...... ................... ................... ...................
........hHhhhj..... ....hhh..hhh....... ................... ...................
........hhhhhj..... ..hhHhhhhHhhhhh.... ................... ......hhhhhhh......
.....hhhhaaahhh.... ..hHhhjhHhhjhHhhh.. ................... ....hhHHhhhhhhhh...
....hHHhhhhhhhhh... .hhhhjhhhhhjhhhhhh. ................... ...hhHhhhhhhhhhahh.
...hHhhhhhhhhhhh... .hHhjhhhhjhhhhjhhh. .............hh.... ...hhhhhhhhhhhhahhh
...hhhhhhjhhhhhj... .hhhhhjhhhhjhhhhHh. ............hHhh... ...hhhhhhhjhhhhjhhh
...hj......jhhhj... ..hhjh.hhj.hhhhjhh. ...........jhhhh... ...hj......jhhj.hHh
............jhj.... .hhh.......jhhHhhhj ..h........jhhhhj.. ...j........jhj.hHh
.............j..... .hhj........jhhhjh. ..h.........jhhhj.. .............j..hhh
................... ..hh.........hjhhj. .............jhjj.. ................hhj
................... .hhj.........jhhhj. .............j..... ................hhj
................... .hh..........jhhjj. ................... ................hj.
................... ..j...........jhj.. ................... ...............hhj.
................... ................... ................... ...............hj..
"""

_LONG_HAIR = """
long                bob                 braids              waves
.....hhhhhhhh...... .....hhhhhhhh...... .....hhhhjhhh...... ...hhhhhhhhhh......
...hhHHhhhhhhhh.... ...hhHHHhhhhhhh.... ...hhHHhjhHHhhh.... .hhHHHhhhhhhhhh....
..hhHhhhhhhhhhhh... ..hHHhhhHHhhhhhh... ..hhHhhjhhhHhhhh... hHHhhhhHHhhhhhhhh..
..hHhhhjhhhhhhhhh.. ..hhhhhhhhHhhhhhh.. ..hhhhj..jhhhhhh... hhhhjhhhhhHhhhhhhh.
..hhhhj..jhhhhhhh.. ..hhhhhhhhhhhhhhh.. ..hhhj....jhhhhhh.. hhj...jhhhhhhHhhhhj
..hhhj.....jhhhhh.. ..hhjjjjjjjjhhhhj.. ..hhj.......jhhhh.. hhhj....jhhhhhhhhhj
.hhhj.......jhhhhh. ..hh........jhhhj.. ..hh.........hhhh.. hhj........jhhhHhhj
.hhj.........hhhhh. ..hh.........hhhj.. .hhj..........hhh.. hhj.........jhhhhhj
.hh..........hhhhh. .hhh.........hhhhj. .hHh..........hHhj. hhj..........hHhhj.
.hh..........hhHhh. .hhj.........hHhhj. .jhj..........jhj.. .hhj.........hhhhhj
.hh..........hHhhj. .hhj.........hhhhj. .hHh..........hHhj. ..hh.........jhhHhj
.hh..........hhhhj. .hhh.........hhhhj. .jhj..........jhj.. ..hj..........hhhhj
.hhj.........hhhhj. ..hhj........jhhj.. .hHh..........hHhj. .hhj.........jhhhj.
.hhh........jhhhhj. ..jj..........jj... .jhj..........jhj.. .hj..........hhhj..
.hhhj.......jhhhhj. ................... .aaa..........aaa.. ..hj........jhhhj..
..hhj........hhhj.. ................... ..h............h... ...j.........hhhj..
..jj.........jhhj.. ................... ..h............h... .............jj....
"""

_EYEWEAR = """
specs           round           shades          aviators
.ffff.ffff..... ..yy...yy...... ............... .yyyy.yyyy.....
.f..fff..fffff. .y..yyy..yyyy.. kkkkkkkkkkkkkkk .ZxxyyyZxxyyyy.
.f..f.f..f..... .y..y.y..y..... .kgkk.kgkk..... .xxxy.xxxy.....
.ffff.ffff..... ..yy...yy...... .kkkk.kkkk..... ..xx...xx......

visor           patch           monocle         cat-eye
gggggggggggggg. ..k..kkkkkkkkk. .......yy...... f...f.f...f....
gxxZxxxxxxxxgg. .....kkkkk..... ......y..y..... ffffffffffffff.
gxZxxxxxxxxxg.. ......kkkk..... ......y..y..... .fxxf.fxxf.....
.gggggggggg.... .......kk...... .......yyy..... .ffff.ffff.....

bandit          goggles         half-moon       tinted
kkkkkkkkkkkkkk. ggggggggggkkkk. ............... ...............
kk..kkk..kkkkkk gxxZggxxZggkkk. ............... .kkkkkkkkkkkkk.
kk..kkk..kkk..k gxxxggxxxg..... .yyyyyyyyyyyy.. .xxZk.kxxZ.....
.kkk.kkkkk..... ggggggggg...... ..yy...yy...... ..xx...xx......
"""

_EARRINGS = """
stud hoop drop earphone
... ... ... w..
.y. .y. .y. w..
... y.y ... w..
... .y. .v. ...
"""

_PROPS = """
cigarette         pipe              bubble            mask
................. ................. ................. ....WWWWWWWWW....
..g.............. ..g.............. ................. ....wwwwwwwwwwwWW
...g............. ...g............. ...pppp.......... ....wwwwwwwwwww..
................. ................. ..pqpppp......... ....WWWWWWWWWW...
rwwwwwo.......... ..tt.ttt......... ..pppppp......... ....wwwwwwwwwwWW.
................. ..ttt............ ..pppppp......... .....WWWWWWWWW...
................. ..ttt............ ...pppp.......... ......wwwwww.....

lollipop          rose              cigar             straw
................. ................. ................. .................
................. .rr.............. .g............... .................
.pp.............. rrrr............. g................ .................
pqpp............. rrrG............. ................. .................
pppwwww.......... .rr.GGGG......... rrtttttt......... ..yyyyy..........
.pp.............. ................. .tttttt.......... yy...............
"""

_HATS = """
cap                  beanie               fedora               top-hat
____________________ ________wwww________ ____________________ ____aaaaaaaaaaaa____
____________________ ________wwWW________ ______aaa_aaaaa_____ ____aAAaaaaaaaaB____
______aaaaaaaa______ ______aaaaaaaa______ _____aAAaaaaaaaa____ ____aAaaaaaaaaaB____
____aaAAaaaaaaaa____ ____aaAAaaaaaaaa____ _____aAaaaaaaaaa____ ____aAaaaaaaaaaB____
____aAaaaaaaaaaaa___ ___aaAaaaaaaaaaaa___ _____aaaaaaaaaaB____ ____aaaaaaaaaaaB____
____aaaaaaaaaaaaB___ ___aaaaaaaaaaaaaB___ ____kkkkkkkkkkkkk___ ____vvvvvvvvvvvv____
_aaaaaaaaaaaaaaaB___ ___AaAaAaAaAaAaAB___ _AAaaaaaaaaaaaaaaaB_ _aaaaaaaaaaaaaaaaaa_
_BBBBBBBBB.......... ___BaBaBaBaBaBaBB___ ....BBBBBBBBBBBB.... ...BBBBBBBBBBBBBB...

beret                crown                bandana              headband
____________________ ____________________ ____________________ ....................
_________kk_________ ____________________ ____________________ ....................
___aaaaaaaaaaaaa____ ___y____y____y______ ______aaaaaaaa______ ....................
__aAAAaaaaaaaaaaaa__ ___yy__yyy__yy______ ____aaAAaawaaaaa____ ....................
_aAaaaaaaaaaaaaaaaB_ ___yyyyyyyyyyyy_____ ____awaaaaaaaawaa___ ....................
_aaaaaaaaaaaaaaaaBB_ ___yryyvyyryyvy..... ____aaaawaaawaaaaa__ ....aaaaaaaaaaaaa...
__BBBBBBBBBBBBBBBB__ ___yyyyyyyyyyyy..... ____BBBBBBBBBBBaBaa_ ....wwwwwwwwwwwww...
.................... .................... .................aaB ....aaaaaaaaaaaaa...

party                bucket               headphones           hood
_________v__________ ____________________ .................... ____________________
________vaa_________ ____________________ ......gggggggg...... ____________________
________aaw_________ ______aaaaaaaa______ ....gg........gg.... _____aaaaaaaaaa_____
_______awaaa________ _____aAAaaaaaaa_____ ...............gg... ___aaaAAaaaaaaaaa___
______aaaaawa_______ _____aAaaaaaaaa_____ ................g... __aaAAaaaaaaaaaaaa__
______awaaaaa_______ ____BBBBBBBBBBBBB___ ................g... __aaaBBBBBBBBaaaaaB_
_____aaaawaaaa______ ___aaaaaaaaaaaaaaa__ ................g... _aaaB........BaaaaB_
.................... __BBBBBBBBBBBBBBBBB_ ................g... _aaB..........BaaaB_
.................... .................... ................g... _aaB..........BaaaB_
.................... .................... ...............aa... _aaB..........BaaaB_
.................... .................... ..............aAaa.. _aaB..........BaaaB_
.................... .................... ..............aAaa.. _aaB..........BaaaB_
.................... .................... ..............aaaa.. _aaB..........BaaaB_
.................... .................... ...............aa... _aaB..........BaaaB_
.................... .................... .................... _aaB..........BaaaB_
.................... .................... .................... _aaaB........BaaaaB_
.................... .................... .................... __aaaB......BaaaaB__
.................... .................... .................... ___aaaBBBBBBaaaaB___
"""

_HAIR = _sheet(2, 5, _SHORT_HAIR) | _sheet(1, 3, _TALL_HAIR) | _sheet(3, 3, _LONG_HAIR)

# From back to front: the chance that a face has something of a layer, and its sprites.
LAYERS = {
    "head": (1.0, _sheet(5, 6, _HEAD)),
    "clothes": (0.9, _sheet(20, 7, _CLOTHES)),
    "nose": (1.0, _sheet(11, 8, _NOSES)),
    "mark": (0.25, _sheet(12, 6, _MARKS)),
    "beard": (0.35, _sheet(13, 5, _BEARDS)),
    "mouth": (1.0, _sheet(15, 7, _MOUTHS)),
    "eyes": (1.0, _sheet(10, 7, _EYES)),
    "brows": (0.9, _sheet(8, 6, _BROWS)),
    "hair": (0.9, _HAIR),
    "eyewear": (0.3, _sheet(9, 5, _EYEWEAR)),
    "earring": (0.2, _sheet(11, 17, _EARRINGS)),
    "hat": (0.3, _sheet(1, 2, _HATS)),
    "prop": (0.15, _sheet(12, 2, _PROPS)),
}

# fmt: off
_INKS = {
    "k": "2a2630", "w": "f2efe6", "W": "c4ccd4", "g": "8a8f98", "y": "f0c242",
    "r": "d9433f", "o": "d98e4a", "p": "f08cb4", "q": "fbd3e2", "t": "8a5a34",
    "G": "4c9a4a",
}
# A face picks one colour of each row, which also comes in a darker and a lighter shade.
_SHADED = {
    "sdl": "f7dac4 efc49c e0aa78 cf9560 b97f4c a0683a 855030 754528 5f3826 9cbc7c",
    "hjH": "4a3a34 6b4526 8f5f2f b98542 e3bf62 f0e2a4 b4532a d8702e 9a9aa2 e2e2e2"
           " d8457a 3f86d8 3fae6a 8a56c8",
    "cC": "c8504a 4a78b8 4f9a6a d8a840 8a5aa8 5c6672 e0dcd0 d87a4a 3fa0a0 a8486a",
    "aBA": "d0473f 3f6fc0 3f9a58 e0b040 7c4fb0 6a5f58 4c5a6c e07a3c 2f9c9c d86a9c",
    "mM": "b0413e d05a6a c8407c 9a4a3a e07a6a 7a3a5a",
    "xzZ": "59c3d8 e8704a 7a4fb8 3c4a5c e0b83c 58b070",
}
_PLAIN = {
    "i": "3a2a20 2f5f9a 3f7a4a 5a5a66 7a4a20",
    "v": "7a52c0 3f9ad0 d05090 40a878 e0a030",
    "f": "c03a3a e07ab0 e8e4dc 3f6fb0 9a6a3a",
}
# fmt: on


def _rgb(colours):
    """Colours like "f7dac4", separated by blanks, as uint8 (number of colours, 3)."""
    flat = np.frombuffer(bytes.fromhex(colours), np.uint8)
    return flat.reshape(-1, 3)


def _draw_letters(rng):
    """One chunk of faces uint8 (500, 24, 24), in letters: one sprite per layer."""
    faces = np.full((CHUNK, _SIDE, _SIDE), _BACKGROUND, np.uint8)
    for chance, sprites in LAYERS.values():
        art = np.stack(list(sprites.values()))
        chosen = art[rng.integers(len(art), size=CHUNK)]
        seen = (rng.random((CHUNK, 1, 1)) < chance) & (chosen != _CLEAR)
        np.copyto(faces, chosen, where=seen)
    return faces


def _draw_palettes(rng):
    """One chunk of palettes uint8 (500, 128, 3): the colour of each letter."""
    palettes = np.zeros((CHUNK, 128, 3), np.uint8)
    for letter, ink in _INKS.items():
        palettes[:, ord(letter)] = _rgb(ink)
    for letters, tones in {**_SHADED, **_PLAIN}.items():
        tones = _rgb(tones)
        picked = tones[rng.integers(len(tones), size=CHUNK)]
        shades = (picked, picked * 0.76, picked * 0.7 + 255 * 0.3)
        for letter, shade in zip(letters, shades):
            palettes[:, ord(letter)] = shade
    return palettes


def _slimmed(faces):
    """The faces without two columns of the cheek and a row of the forehead.

    So every sprite fits both builds of a head.
    """
    columns = [0, *(c for c in range(_SIDE) if c not in (15, 16)), _SIDE - 1]
    rows = [0, *(r for r in range(_SIDE) if r != 7)]
    return faces[:, rows][:, :, columns]


def _draw_chunk(seed, chunk):
    """The faces uint8 (500, 3, 24, 24) of one chunk, as the only array of a tuple."""
    rng = np.random.default_rng([seed, chunk])
    letters, palettes = _draw_letters(rng), _draw_palettes(rng)
    slim = rng.random(CHUNK) < 0.5
    letters[slim] = _slimmed(letters[slim])
    pixels = palettes[np.arange(CHUNK)[:, None, None], letters]
    return (np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)),)


def synthetic_punks(n: int = 10_000, seed: int = 0) -> np.ndarray:
    """Draw ``n`` pixel faces, uint8 (n, 3, 24, 24): planes of red, green and blue.

    The background is black, as the transparent one of CryptoPunks is once it is RGB.
    The same seed (an integer >= 0) draws the same faces, the first k of which are the
    same for every n >= k. Raises ValueError unless ``n`` is an integer >= 1.
    """
    (faces,) = draw_first(n, partial(_draw_chunk, seed))
    return faces
