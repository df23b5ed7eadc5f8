"""What rounding explains: floors, roundoffs, ratios, the verdict of one pair; `compare`, `fault` and `sweeping` ask.

calibration   every threshold of a verdict, with what was seen on which models
roundoff      how coarse the arithmetic of a dtype is, and of a run
floor         the error that rounding explains at a site of a recorded run
pair          the verdict of two records that were measured against each other
signs         the ratio of one measurement to its floor, between two live models
shapes, depth what a verdict needs of a record: whether two shapes differ only in form, and how deep a site lies
"""
