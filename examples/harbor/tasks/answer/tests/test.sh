#!/bin/bash
# 1 for the right line, 0.2 for a file with another one.
reward=0
[ -f /app/answer.txt ] && reward=0.2
[ "$(cat /app/answer.txt 2>/dev/null)" = "42" ] && reward=1
echo "$reward" > /logs/verifier/reward.txt
