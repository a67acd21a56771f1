class RobustAverager: pass
