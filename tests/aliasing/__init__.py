"""Random programs of views, writes and reads, run on the CPU and on device xla, and compared in all that can be observed."""
