"""What the account of a budget has spent and reserved: US dollars, tokens, calls."""

from testnuc.limits.budget import PICO


def spent(account):
    usd, tokens, calls = account._spent
    return usd / PICO, tokens, calls


def reserved(account):
    usd, tokens, calls = account._reserved
    return usd / PICO, tokens, calls
