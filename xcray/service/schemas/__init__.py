"""Schemas of REST requests and replies.

Requests are strict: no unknown fields, no strings for numbers, no NaN.
"""
