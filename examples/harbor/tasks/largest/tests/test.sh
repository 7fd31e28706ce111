#!/bin/bash
# 1 for the right number, 0.2 for a file with another one.
reward=0
[ -f /app/largest.txt ] && reward=0.2
[ "$(cat /app/largest.txt 2>/dev/null)" = "31" ] && reward=1
echo "$reward" > /logs/verifier/reward.txt
