"""Mutation testing of the product's Python: which small faults do the tests not see?"""
