"""The query as a value, and the values that every later step uses.

In: the clauses of a `Dataset`. Out: `Query`, `ReadSpec`, and the types of columns, maps, stacks and batches.
Nothing here reads, decodes or starts anything.
Imports of the engine: none.
"""
