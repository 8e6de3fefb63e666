"""Benchmarks: contenders side by side in one run, interleaved; ratios are the result, for absolute times drift."""
