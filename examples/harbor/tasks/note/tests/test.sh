#!/bin/bash
# 1 for the right line, 0.2 for a file with another one.
reward=0
[ -f /app/note.txt ] && reward=0.2
[ "$(cat /app/note.txt 2>/dev/null)" = "See you at noon." ] && reward=1
echo "$reward" > /logs/verifier/reward.txt
