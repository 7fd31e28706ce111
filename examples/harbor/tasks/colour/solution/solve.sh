#!/bin/bash
echo "green" > /app/colour.txt
