class RobustOuterOptimizer: pass
