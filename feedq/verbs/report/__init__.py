"""What commands and web pages say alike to people; neither knows the other."""
