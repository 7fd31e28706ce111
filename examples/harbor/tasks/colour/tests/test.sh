#!/bin/bash
# 1 for the right line, 0.2 for a file with another one.
reward=0
[ -f /app/colour.txt ] && reward=0.2
[ "$(cat /app/colour.txt 2>/dev/null)" = "green" ] && reward=1
echo "$reward" > /logs/verifier/reward.txt
