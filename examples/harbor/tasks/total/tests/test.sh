#!/bin/bash
# Right sum, and the prices as they were.
sum=0
kept=0
[ "$(cat /app/total.txt 2>/dev/null)" = "49" ] && sum=1
[ "$(cat /app/prices.txt 2>/dev/null | tr '\n' ' ')" = "12 7 30 " ] && kept=1
echo "{\"reward\": $((sum * kept)), \"sum\": $sum, \"kept\": $kept}" > /logs/verifier/reward.json
