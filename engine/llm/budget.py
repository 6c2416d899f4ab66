"""Hard limits on tokens and money, checked before a request is sent, and the account of what was spent."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.errors import ConfigError
from engine.llm.errors import ModelError
from engine.trajectory import Usage

# Code and shapes cost more tokens a character than prose; a low figure makes estimates careful.
BYTES_PER_TOKEN = 3.2
PER_MESSAGE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars for a million tokens."""

    prompt: float
    completion: float

    def of(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Dollars of so many tokens."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


def tokens_of(text: str) -> int:
    """A careful estimate of a text's tokens."""
    return int(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN) + 1


def read_price(file: str, model: str) -> Price | None:
    """The price of `model` in a price file, or None where it names none.

    The file has one table a model: `["name"]` with `prompt` and `completion`, dollars for a million tokens.

    Raises:
        ConfigError: The file cannot be read or a price is no number.
    """
    if not file:
        return None
    hint = 'write ["model name"] with prompt = 0.3 and completion = 1.2 (dollars for a million tokens)'
    try:
        rows = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the price file cannot be read: {error}", hint=hint, file=file) from None
    row = rows.get(model)
    if row is None:
        return None
    values = [row.get(key) if isinstance(row, dict) else None for key in ("prompt", "completion")]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and v >= 0 for v in values):
        raise ConfigError(f"the prices of {model!r} are no numbers of 0 or more", hint=hint, file=file)
    return Price(prompt=float(values[0]), completion=float(values[1]))  # type: ignore[arg-type]


class Budget:
    """What may be spent and what was.

    Args:
        tokens: Tokens of prompts and answers together, or None.
        dollars: Money, or None.
        price: The model's price, or None where it is not known.
        model: For the record.

    Raises:
        ConfigError: Money is limited but no price is known.
    """

    def __init__(self, *, tokens: int | None = None, dollars: float | None = None, price: Price | None = None,
                 model: str = "") -> None:
        if dollars is not None and price is None:
            raise ConfigError("money is limited, but no price of this model is known",
                              hint="name a price file in llm.prices that has the model, or limit tokens")
        self._tokens, self._dollars, self._price = tokens, dollars, price
        self._before = Usage()
        self._held: list[tuple[int, int]] = []
        self.usage = Usage(model=model, dollars=0.0 if price else None)

    def begin_after(self, before: Usage) -> None:
        """Count what an interrupted run spent before against the same limits."""
        self._before = before

    def afford(self, prompt: int, answer: int) -> int:
        """How long the answer of a request may be, at most `answer`; what it may cost is held until `settle`.

        Raises:
            ModelError: The request does not fit into what is left.
        """
        held_prompt = sum(p for p, _ in self._held)
        held_answer = sum(a for _, a in self._held)
        allowed = answer
        if self._tokens is not None:
            before = self._before.prompt_tokens + self._before.completion_tokens
            spent = before + self.usage.prompt_tokens + self.usage.completion_tokens + held_prompt + held_answer
            allowed = min(allowed, self._tokens - spent - prompt)
            if allowed < min(answer, 256):
                self._refuse(f"tokens: the next question does not fit into the limit of {self._tokens}, "
                             f"{spent} are used", "--tokens")
        if self._dollars is not None and self._price is not None:
            money = (self._before.dollars or 0.0) + (self.usage.dollars or 0.0)
            money += self._price.of(held_prompt + prompt, held_answer)
            left = self._dollars - money
            per_token = self._price.completion / 1e6
            if per_token > 0:
                allowed = min(allowed, int(left / per_token))
            if left < 0 or allowed < min(answer, 256):
                self._refuse(f"money: the next question does not fit into the limit of {self._dollars:g} dollars",
                             "--dollars")
        self._held.append((prompt, allowed))
        return allowed

    def settle(self, prompt: int, allowed: int, *, used: tuple[int, int] | None, guessed: tuple[int, int]) -> None:
        """End a request: `used` as the endpoint reported it, else `guessed`."""
        self._held.remove((prompt, allowed))
        prompt_tokens, answer_tokens = used or guessed
        dollars = self.usage.dollars
        if self._price is not None:
            dollars = (dollars or 0.0) + self._price.of(prompt_tokens, answer_tokens)
        self.usage = replace(
            self.usage, requests=self.usage.requests + 1, prompt_tokens=self.usage.prompt_tokens + prompt_tokens,
            completion_tokens=self.usage.completion_tokens + answer_tokens, dollars=dollars,
            estimated=self.usage.estimated or (used is None and sum(guessed) > 0))

    def from_cache(self) -> None:
        """One question was answered without a request."""
        self.usage = replace(self.usage, cached_answers=self.usage.cached_answers + 1)

    def words(self, prompt: int, answer: int) -> str:
        """What so many tokens may cost at most, in words."""
        money = f", {self._price.of(prompt, answer):.2g} dollars" if self._price else ", of unknown price"
        return f"{prompt / 1000:.0f}k tokens of prompts and {answer / 1000:.0f}k of answers at most{money}"

    def _refuse(self, reason: str, flag: str) -> None:
        self.usage = replace(self.usage, exhausted=reason)
        raise ModelError("budget", reason, hint=f"raise {flag} and resume")
