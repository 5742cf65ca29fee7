"""What a connector needs besides its own file, under the name of its protocol."""
