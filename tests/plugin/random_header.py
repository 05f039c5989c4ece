"""Random valid headers: every shape, type and option that the grammar allows, from a seed."""

import random

NUMBERS = ["int", "size_t", "uint32_t", "int64_t", "unsigned short", "uint8_t", "short", "long long"]
ELEMENTS = ["char", "double", "uint16_t", "struct point", "float", "int64_t", "unsigned char", "pair_t"]
VALUES = [*NUMBERS, "double", "float", "bool", "enum colour", "struct point", "pair_t", "char", "mode_t"]
POINTEES = [value for value in VALUES if value != "char"]

PRELUDE = """#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
struct point { uint8_t tag; double x; int32_t y; };
typedef struct { short a; char b[5]; } pair_t;
enum colour { RED, GREEN };
/* START-ZAZEN-SCANNER ID=%d INIT=NULL FINI=NULL */
"""


class Header:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.userbufs = set()

    def maybe(self, option: str, often: float = 0.3) -> str:
        return option if self.random.random() < often else ""

    def array(self, index: int) -> list[str]:
        """An array and its size, in either order."""
        direction = self.random.choice(["in", "out", "inout"])
        element = self.random.choice([*ELEMENTS, "void"])
        options = self.maybe(f":max={self.random.choice([1, 9, 300])}")
        if self.random.random() < 0.5:
            options += ":zerocopy"
            if direction != "inout" and direction not in self.userbufs and self.random.random() < 0.6:
                self.userbufs.add(direction)
                options += ":userbuf"
        if "userbuf" not in options:
            options += self.maybe(":nullok")
        const = "const " if direction == "in" and self.random.random() < 0.5 else ""
        number = self.random.choice(NUMBERS)
        size = self.random.choice(
            [
                f"{number} n{index} /* in:obj */",
                f"const {number} *n{index} /* in:ptr{self.maybe(':nullok')} */",
                f"{number} *n{index} /* inout:ptr{self.maybe(':nullok')} */",
            ]
        )
        star = self.maybe("*", 0.5) if "obj" not in size else ""
        if self.random.random() < 0.5:
            return [f"{const}{element} *p{index} /* {direction}:arr:size={star}+1{options} */", size]
        return [size, f"{const}{element} *p{index} /* {direction}:arr:size={star}-1{options} */"]

    def lines(self, index: int) -> list[str]:
        direction = self.random.choice(["in", "out", "inout"])
        number = self.random.choice(NUMBERS)
        lengths = f"{number} *l{index} /* {self.random.choice(['in', 'inout'])}:arr:size=+1 */"
        count = self.random.choice([f"unsigned n{index} /* in:obj */", f"size_t *n{index} /* inout:ptr */"])
        option = self.maybe(":zerocopy", 0.5) + self.maybe(":max=40")
        return [
            f"{self.random.choice([*ELEMENTS, 'void'])} **p{index} /* {direction}:arr2d:size=+1{option} */",
            lengths,
            count,
        ]

    def group(self, index: int) -> list[str]:
        shape = self.random.randrange(9)
        nullok = self.maybe(":nullok")
        if shape < 2:
            return [f"{self.random.choice(VALUES)} p{index} /* in:obj */"]
        if shape < 4:
            direction = self.random.choice(["in", "out", "inout"])
            return [f"{self.random.choice(POINTEES)} *p{index} /* {direction}:ptr{nullok} */"]
        if shape == 4:
            return [f"const char *p{index} /* in:str{nullok} */"]
        if shape == 5:
            return [f"char *p{index} /* {self.random.choice(['out', 'inout'])}:str:max=40{nullok} */"]
        if shape == 6:
            return self.lines(index)
        return self.array(index)

    def function(self, index: int) -> str:
        self.userbufs = set()
        groups = [self.group(number) for number in range(self.random.randrange(5))]
        parameters = [parameter for group in groups for parameter in group]
        result = self.random.choice(["void", *VALUES])
        words = self.random.choice(["", "/* errno */", "/* blocking idempotent */", "/* errno, blocking */"])
        return f"{words}\n{result} f{index}({', '.join(parameters) or 'void'});\n"

    def text(self, functions: int) -> str:
        identity = self.random.randrange(1, 65536)
        return PRELUDE % identity + "".join(self.function(index) for index in range(functions))
