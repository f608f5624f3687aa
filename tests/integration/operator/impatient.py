"""The operator with short waits in place of minutes. They count from when the operator sees something, so no
timestamp of a test can shorten them.
"""

from dtj_operator import progress
from dtj_operator.__main__ import main
from dtj_operator.plan import isolation, node_loss
from dtj_operator.plan.policies import size

isolation.ISOLATED_AFTER_S = progress.ASK_OTHERS_AFTER_S = node_loss.OVERDUE_S = size.SHRINK_AFTER_S = 2.0
progress.HEARD_S = 1.0

if __name__ == "__main__":
    main()
