"""What it costs a server to encode the tokens of many streams and send them."""
