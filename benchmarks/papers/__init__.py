"""The five papers: their claims, measured."""
