"""Every operator, module and optimizer in PyTorch's own databases, on device xla against the CPU.

    python -m tests.conformance                          # all of it; continues where the last run ended
    python -m tests.conformance --only '^linalg' --dtype float32 --samples 10
    python -m tests.conformance --doc                    # writes docs/conformance.md from the results

`entries.py` reads the databases; `calls.py` says what is done with one sample; `evaluate.py` does it on both devices;
`outcome.py` compares, and `wide.py` where 16 bits are few; `served.py` watches how aten ops were computed; `workers.py`
runs it all in processes that may die; `expected.py` holds what is known to differ, and why; `results.py` keeps results;
`touched.py` finds what a change concerns; `report.py` writes the document.
"""
