#!/bin/bash
cd /app && sum=0 && while read -r price; do sum=$((sum + price)); done < prices.txt && echo "$sum" > total.txt
