"""faultbench: pairs of models with known culprits, and how well a finder names them.

families (seeded models) · roles (what a module is) · faults, weights, settings, code, attention (what goes wrong) ·
case, cases, clean, serving (the list) · ported (port_net), others (other_nets, other_ways): two more lists ·
tiny, draws (seeded random pairs) · rules (what others use) · score, run (the table).
Nothing is downloaded; everything runs on a CPU.
"""
