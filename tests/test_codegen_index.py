"""Index expressions keep their value under every simplification."""

import random

from engine.codegen.index import Index, linear, to_cpp, unravel, variable


def test_simplified_expressions_have_the_value_of_the_arithmetic():
    random.seed(0)
    for _ in range(3000):
        variables = {name: variable(name, random.randint(1, 9)) for name in "abc"}
        values = {name: random.randint(0, v.range[1]) for name, v in variables.items()}
        factors = [random.randint(-5, 12) for _ in "abc"]
        constant = random.randint(-5, 20)
        expression = sum((v * f for v, f in zip(variables.values(), factors, strict=True)), Index(constant))
        expected = sum(values[n] * f for n, f in zip("abc", factors, strict=True)) + constant
        for _ in range(random.randint(1, 5)):
            operation, number = random.choice("/%*"), random.randint(1, 12)
            if operation == "/":
                expression, expected = expression // number, expected // number
            elif operation == "%":
                expression, expected = expression % number, expected % number
            else:
                expression, expected = expression * number + variables["a"], expected * number + values["a"]
            low, high = expression.range
            assert low <= expected <= high
            # `//` of Python rounds down; the text only ever divides numbers that are not negative.
            assert eval(to_cpp(expression).replace("/", "//"), {}, dict(values)) == expected
            assert expression.substitute({n: Index(v) for n, v in values.items()}) == Index(expected)


def test_a_view_and_its_inverse_cancel():
    shape = (4, 6, 35)
    index = tuple(variable(f"i{d}", size) for d, size in enumerate(shape))

    there = unravel(linear(index, shape), (24, 5, 7))
    back = unravel(linear(there, (24, 5, 7)), shape)

    assert back == index


def test_merged_loops_read_as_one_step():
    k = variable("k", 24)

    assert to_cpp((k // 4) * 4 + k % 4) == "k"
    assert to_cpp((k // 12) * 100 + (k % 12) * 5) == "k / 12 * 100 + (k % 12) * 5"


def test_products_and_sums_beyond_32_bits_are_written_with_64():
    a, b = variable("a", 64), variable("b", 10)

    assert to_cpp(a * 1000 + b) == "a * 1000 + b"
    assert to_cpp(a * 40_000_000 + b) == "a * 40000000L + b"
    assert to_cpp(b * 200_000_000 + a * 10_000_000) == "b * 200000000L + a * 10000000"
    assert to_cpp((a * 40_000_000 + b) % 2_000_000_011) == "((a * 40000000L + b) % 2000000011)"
