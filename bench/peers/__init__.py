"""llamalane beside other servers: how each is started, what they are asked, and how it is told."""
