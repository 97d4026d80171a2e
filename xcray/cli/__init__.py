"""The command line: one file a group of commands, results on stdout, progress and errors on stderr.

Commands import the rooms they need when they run, so that `xcray --help` starts at once.

main      the tree of commands, and what becomes of errors
output    results as tables or as one JSON document
progress  bars on a terminal, plain lines elsewhere
"""
