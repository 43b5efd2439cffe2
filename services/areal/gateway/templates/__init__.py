"""Pinned chat templates: first prompts, bridges between turns with their proof, and content that stays data."""
