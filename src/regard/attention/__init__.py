"""Steps 1 to 3 together: one description of a call, and one file for each exact algorithm that can compute it.

`attend` describes its call (`call`) and takes the first algorithm that suits it in one list (`choice`); the file of an
algorithm has its name.
"""
