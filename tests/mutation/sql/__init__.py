"""Mutation testing of the SQL: which small faults of the schema, its grants and the statements do the tests not see?"""
