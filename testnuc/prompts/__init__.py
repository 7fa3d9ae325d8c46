"""Prompt rendering and reply parsing.

Pure functions. The system prompt holds everything that is the same for all texts, so that providers
can cache it. In the user prompt each text is one line of JSON: its content (our own markers, JSON,
instructions, line breaks) cannot end the line, so it cannot pose as another text.
"""
