"""Answers that are kept: calls that a repeated micro-batch does not make again.

A call is named by what it asks (`naming`). Its answer is stored in a sealed object
(`answer_objects`), which a thread writes (`writer`), and a later attempt of the same micro-batch
finds it (`reader`).
"""
