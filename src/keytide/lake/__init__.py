"""The public objects: a lake, its tables, and scans of them.

They are thin and delegate the work to the layers below.
"""
