"""`python -m benchmarks.faultbench`."""

from benchmarks.faultbench.run import main

raise SystemExit(main())
