"""Black-box tests: real processes on embedded servers."""
