"""What breaks around the library: processes that end, exporters that do not answer, disks that are full."""
