"""From readings to figures and verdicts: intervals, the event log, calibration, estimates, judging.

Pure: no clock, no app, no event loop, no pytest. May import: `model`, `errors`.
"""
