"""Talking to language models over any OpenAI-compatible endpoint.

`endpoint` says where, `client` asks and never asks twice for the same, `capability` remembers what an
endpoint can do, `budget` holds the limits, `structured` gets JSON and `shapes` checks it, `bridge` lets a
person or another program play the model through files. Nothing here knows about kernels.
"""
