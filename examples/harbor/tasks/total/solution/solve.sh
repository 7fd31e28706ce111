#!/bin/bash
cd /app && paste -sd+ prices.txt | bc > total.txt
