"""The repository itself: style, names, pages and files that have to fit each other."""
