"""What the frames of a streamed answer say about its request: a module for each dialect, and cutting a stream up."""
