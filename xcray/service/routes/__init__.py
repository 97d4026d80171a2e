"""One file a noun. Routes translate: request -> the rooms below -> reply; they decide nothing themselves."""
